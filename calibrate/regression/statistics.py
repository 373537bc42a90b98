"""How far predictions are off: errors by counter, verdicts, and the two figures of xMem. Pure functions.

**xMem**: Jiabo Shi, Dimitrios Pezaros, Yehia Elkhatib, "xMem: A CPU-Based Approach for Accurate Estimation of GPU
Memory in Deep Learning Training Workloads", Middleware 2025, arXiv 2510.21048. It runs each job, then once more with
its memory limited to the estimate. An estimate *succeeds* where the job really runs out of memory and was said to, and
where it does not, was not said to, and the limited run survives. With n jobs (as the authors' own evaluation computes
them: github.com/Stone-ResearchLife/xMem, ``data_processing`` and ``summarize_data`` of its plots):

- probability of estimation failure, PEF = failures / n;
- memory conservation potential, MCP = (sum of the GPU's memory less the estimate over successes - sum of the estimates
  over failures) / n, where a job that was rightly said not to fit saves the whole GPU.

What is ours: nothing runs a second time. A run that is limited to at least the reserved bytes that it peaked at is the
same run again (``predictor.jobs.survival.minimum_capacity``), so the second run survives if the estimate leaves PyTorch
what was measured as reserved. With less it may survive too, by giving back what it caches; that counts as a failure
here. MCP is of jobs that ran to their end, each credited against the capacity that it had, which is less than the GPU's
where a limit was set. A job that died saves what was never its: it counts in PEF alone, as does one that had more than
its GPU has (on an emulated one). The estimate is ``Comparison.estimate_bytes``: the upper end of reserved bytes and of
the runtime. ``uncertain`` does not say that a job runs out of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.regression.cases import COUNTERS, LABELS
from calibrate.regression.compare import Comparison

CLOSE = 0.01
"""Errors up to this count in ``Errors.close``."""
VERDICTS = ("fits", "uncertain", "does_not_fit")


@dataclass(frozen=True)
class Errors:
    """Relative errors of one counter over some cases, as fractions (0.01 is 1 %).

    An error is (predicted - measured) / measured.

    Attributes:
        cases: how many have an error: measured, predicted, and run to the end.
        mape: mean of the absolute errors.
        median, p95: of the absolute errors; between two, linear.
        worst: the error that is largest in size, with its sign.
        worst_case: the id of its case.
        bias: mean of the signed errors: below 0, predictions are too low.
        exact: how many are equal to the byte.
        close: the share within :data:`CLOSE`.
        inside: the share of measured peaks in the predicted interval, of those that have one; None: none has.
    """

    cases: int
    mape: float
    median: float
    p95: float
    worst: float
    worst_case: str
    bias: float
    exact: int
    close: float
    inside: float | None


@dataclass(frozen=True)
class Figures:
    """xMem's two, and what they are of.

    Attributes:
        cases: jobs that a failure could be told of.
        failures: ids of those whose estimate fails.
        failure_probability: PEF; None without cases.
        conservation_cases: those that ran to their end with at most what their GPU has (see above).
        conservation_bytes: MCP, bytes a job; None without cases.
    """

    cases: int
    failures: tuple[str, ...]
    failure_probability: float | None
    conservation_cases: int
    conservation_bytes: float | None


@dataclass(frozen=True)
class Verdicts:
    """What was said against what became of the job.

    Attributes:
        survived, died: verdict to number of cases; all of :data:`VERDICTS` are there.
        false_fits: ids of the cases that were said to fit and ran out of memory.
        false_alarms: ids of those that were said not to fit and ran.
    """

    survived: Mapping[str, int]
    died: Mapping[str, int]
    false_fits: tuple[str, ...]
    false_alarms: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Everything that is said of some cases together.

    Attributes:
        by: one of ``cases.LABELS``, or ``all``.
        value: what they have in common there; empty for ``all``.
        cases: how many there are, those without any error included.
        errors: counter to its errors, for the counters of ``cases.COUNTERS`` that have some.
        moments, moment_hits: cases whose moment is known, and how many of them peak in the predicted one.
    """

    by: str
    value: str | int
    cases: int
    errors: Mapping[str, Errors]
    moments: int
    moment_hits: int
    verdicts: Verdicts
    xmem: Figures


def errors(found: Sequence[tuple[str, float]], inside: Sequence[bool] = ()) -> Errors:
    """Of (case id, error), at least one; ``inside`` has an entry for each measured peak with an interval."""
    values = np.array([error for _, error in found])
    sizes = np.abs(values)
    worst = int(np.argmax(sizes))
    return Errors(
        cases=len(values), mape=float(sizes.mean()), median=float(np.median(sizes)),
        p95=float(np.percentile(sizes, 95)), worst=float(values[worst]), worst_case=found[worst][0],
        bias=float(values.mean()), exact=int((values == 0).sum()), close=float((sizes <= CLOSE).mean()),
        inside=float(np.mean(inside)) if len(inside) else None)


def by_counter(comparisons: Sequence[Comparison]) -> dict[str, Errors]:
    """The errors of each counter that has some."""
    result = {}
    for counter in COUNTERS:
        peaks = [(one.case.id, one.peaks[counter]) for one in comparisons]
        found = [(case, peak.error) for case, peak in peaks if peak.error is not None]
        if found:
            result[counter] = errors(found, [peak.inside for _, peak in peaks if peak.inside is not None])
    return result


def verdicts(comparisons: Iterable[Comparison]) -> Verdicts:
    """Of the cases with a capacity that their GPU has; more tells nothing of that GPU."""
    judged = [one for one in comparisons if one.verdict is not None and _within_its_gpu(one)]

    def count(survived: bool) -> dict[str, int]:
        return {verdict: sum(one.verdict == verdict and one.case.survived is survived for one in judged)
                for verdict in VERDICTS}

    return Verdicts(count(True), count(False),
                    tuple(one.case.id for one in judged if one.verdict == "fits" and not one.case.survived),
                    tuple(one.case.id for one in judged if one.verdict == "does_not_fit" and one.case.survived))


def succeeds(one: Comparison) -> bool | None:
    """Whether the estimate is of use, as xMem has it (see above); None where the case does not tell."""
    if not one.case.survived:
        return one.verdict == "does_not_fit"
    reserved, device = one.peaks["reserved"].measured_bytes, one.peaks["device"].measured_bytes
    if reserved is None:
        return None
    return (one.verdict != "does_not_fit" and reserved <= one.estimate_bytes - one.runtime_bytes
            and (device is None or device <= one.estimate_bytes))


def figures(comparisons: Iterable[Comparison]) -> Figures:
    """PEF and MCP (see above)."""
    told = [(one, succeeds(one)) for one in comparisons if succeeds(one) is not None]
    saved = [_saved(one, success) for one, success in told if one.case.survived and _within_its_gpu(one)]
    failures = tuple(one.case.id for one, success in told if not success)
    return Figures(len(told), failures, len(failures) / len(told) if told else None, len(saved),
                   sum(saved) / len(saved) if saved else None)


def _within_its_gpu(one: Comparison) -> bool:
    total = one.case.gpu_bytes
    return total is not None and one.capacity_bytes is not None and one.capacity_bytes <= total


def _saved(one: Comparison, success: bool) -> int:
    """Bytes that this job leaves to others; below 0 what it takes for nothing."""
    return one.capacity_bytes - one.estimate_bytes if success else -one.estimate_bytes


def group(comparisons: Sequence[Comparison], by: str = "all", value: str | int = "") -> Group:
    """All of it, of these cases."""
    moments = [one.moment_hit for one in comparisons if one.moment_hit is not None]
    return Group(by, value, len(comparisons), by_counter(comparisons), len(moments), sum(moments),
                 verdicts(comparisons), figures(comparisons))


def groups(comparisons: Sequence[Comparison]) -> list[Group]:
    """All cases, then each value of each label in the order of :data:`LABELS`, sorted."""
    result = [group(comparisons)]
    for label in LABELS:
        parts = split(comparisons, lambda one, label=label: one.case.labels[label])
        result += [group(part, label, value) for value, part in sorted(parts.items())]
    return result


def split(comparisons: Iterable[Comparison], key: Callable[[Comparison], Hashable]) -> dict:
    """The comparisons by their key, in order."""
    parts: dict[Hashable, list[Comparison]] = {}
    for one in comparisons:
        parts.setdefault(key(one), []).append(one)
    return parts
