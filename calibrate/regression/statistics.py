"""Statistics of prediction errors: errors by counter, verdicts, and the two figures of xMem. Pure functions.

**xMem**: Jiabo Shi, Dimitrios Pezaros, Yehia Elkhatib, "xMem: A CPU-Based Approach for Accurate Estimation of GPU
Memory in Deep Learning Training Workloads", Middleware 2025, arXiv 2510.21048. xMem runs each job, then once more
with its memory limited to the estimate. An estimate *succeeds* in two cases: the job runs out of memory as predicted;
or it does not, was not predicted to, and the limited run survives. With n jobs (as the authors' own evaluation computes
them: github.com/Stone-ResearchLife/xMem, ``data_processing`` and ``summarize_data`` of its plots):

- probability of estimation failure, PEF = failures / n;
- memory conservation potential, MCP = (sum of the GPU's memory less the estimate over successes - sum of the estimates
  over failures) / n, where a job that was rightly predicted not to fit saves the whole GPU.

This module differs from xMem: nothing runs a second time. A run whose limit is at least its peak of reserved bytes is
the same run again (``predictor.jobs.survival.minimum_capacity``). So the second run survives if the estimate leaves
PyTorch the measured reserved bytes. With less, it may survive by releasing cached segments; that counts as a failure
here. MCP covers jobs that ran to their end. Each is credited against its own capacity, which is less than the GPU's if
a limit was set. Two sorts of jobs count in PEF only: jobs that died, and jobs with more memory than their GPU has (on
an emulated GPU). The estimate is ``Comparison.estimate_bytes``: the upper ends of reserved bytes and of the runtime.
``uncertain`` does not predict that a job runs out of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from calibrate.regression.cases import COUNTERS, LABELS
from calibrate.regression.compare import Comparison

CLOSE = 0.01
"""Largest relative error that counts in ``Errors.close``."""
VERDICTS = ("fits", "uncertain", "does_not_fit")


@dataclass(frozen=True)
class Errors:
    """Relative errors of one counter over some cases, as fractions (0.01 is 1 %).

    An error is (predicted - measured) / measured.

    Attributes:
        cases: number of cases with an error: measured, predicted, and run to the end.
        mape: mean of the absolute errors.
        median, p95: of the absolute errors, interpolated linearly.
        worst: the error with the largest absolute value, with its sign.
        worst_case: id of the case with that error.
        bias: mean of the signed errors; negative if predictions are too low.
        exact: number of predictions that are equal to the byte.
        close: share of cases within :data:`CLOSE`.
        inside: share of measured peaks in the predicted interval, of those with an interval; None without any.
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
    """The two figures of xMem, and the jobs that they cover.

    Attributes:
        cases: number of jobs whose estimate can be judged.
        failures: ids of the jobs whose estimate fails.
        failure_probability: PEF; None without cases.
        conservation_cases: number of jobs that ran to their end with at most their GPU's memory (see above).
        conservation_bytes: MCP, in bytes per job; None without cases.
    """

    cases: int
    failures: tuple[str, ...]
    failure_probability: float | None
    conservation_cases: int
    conservation_bytes: float | None


@dataclass(frozen=True)
class Verdicts:
    """Verdicts against the outcomes of the jobs.

    Attributes:
        survived, died: each of :data:`VERDICTS` -> number of cases.
        false_fits: ids of the cases with the verdict ``fits`` that ran out of memory.
        false_alarms: ids of the cases with the verdict ``does_not_fit`` that survived.
    """

    survived: Mapping[str, int]
    died: Mapping[str, int]
    false_fits: tuple[str, ...]
    false_alarms: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Statistics of a group of cases.

    Attributes:
        by: one of ``cases.LABELS``, or ``all``.
        value: their common value of that label; empty for ``all``.
        cases: number of cases, including those without any error.
        errors: counter -> its errors, for the counters of ``cases.COUNTERS`` that have errors.
        moments, moment_hits: number of cases whose measured moment is known, and of those that peak in the predicted
            one.
    """

    by: str
    value: str | int
    cases: int
    errors: Mapping[str, Errors]
    moments: int
    moment_hits: int
    verdicts: Verdicts
    xmem: Figures


def errors(pairs: Sequence[tuple[str, float]], inside: Sequence[bool] = ()) -> Errors:
    """Statistics of at least one pair of case id and error.

    Args:
        inside: for each measured peak with a predicted interval, whether it is in the interval.
    """
    values = np.array([error for _, error in pairs])
    sizes = np.abs(values)
    worst = int(np.argmax(sizes))
    return Errors(
        cases=len(values), mape=float(sizes.mean()), median=float(np.median(sizes)),
        p95=float(np.percentile(sizes, 95)), worst=float(values[worst]), worst_case=pairs[worst][0],
        bias=float(values.mean()), exact=int((values == 0).sum()), close=float((sizes <= CLOSE).mean()),
        inside=float(np.mean(inside)) if len(inside) else None)


def by_counter(comparisons: Sequence[Comparison]) -> dict[str, Errors]:
    """Errors of each counter that has any."""
    result = {}
    for counter in COUNTERS:
        peaks = [(comparison.case.id, comparison.peaks[counter]) for comparison in comparisons]
        pairs = [(case, peak.error) for case, peak in peaks if peak.error is not None]
        if pairs:
            result[counter] = errors(pairs, [peak.inside for _, peak in peaks if peak.inside is not None])
    return result


def verdicts(comparisons: Iterable[Comparison]) -> Verdicts:
    """Verdicts of the cases whose capacity is at most their GPU's; more memory shows nothing about that GPU."""
    judged = [(comparison.verdict, comparison.case) for comparison in comparisons
              if comparison.verdict is not None and _within_its_gpu(comparison)]

    def count(survived: bool) -> dict[str, int]:
        return {verdict: sum(predicted == verdict and case.survived is survived for predicted, case in judged)
                for verdict in VERDICTS}

    return Verdicts(count(True), count(False),
                    tuple(case.id for verdict, case in judged if verdict == "fits" and not case.survived),
                    tuple(case.id for verdict, case in judged if verdict == "does_not_fit" and case.survived))


def succeeds(comparison: Comparison) -> bool | None:
    """Whether the estimate succeeds in xMem's sense (see above); None if the case cannot be judged."""
    if not comparison.case.survived:
        return comparison.verdict == "does_not_fit"
    reserved, device = comparison.peaks["reserved"].measured_bytes, comparison.peaks["device"].measured_bytes
    if reserved is None:
        return None
    return (comparison.verdict != "does_not_fit" and reserved <= comparison.estimate_bytes - comparison.runtime_bytes
            and (device is None or device <= comparison.estimate_bytes))


def figures(comparisons: Iterable[Comparison]) -> Figures:
    """PEF and MCP (see above)."""
    judged = [(comparison, success) for comparison in comparisons if (success := succeeds(comparison)) is not None]
    saved = [_saved(comparison, success) for comparison, success in judged
             if comparison.case.survived and _within_its_gpu(comparison)]
    failures = tuple(comparison.case.id for comparison, success in judged if not success)
    return Figures(len(judged), failures, len(failures) / len(judged) if judged else None, len(saved),
                   sum(saved) / len(saved) if saved else None)


def _within_its_gpu(comparison: Comparison) -> bool:
    total = comparison.case.gpu_bytes
    return total is not None and comparison.capacity_bytes is not None and comparison.capacity_bytes <= total


def _saved(comparison: Comparison, success: bool) -> int:
    """Bytes that this job leaves to others; negative bytes for a failed estimate, which are wasted."""
    assert comparison.capacity_bytes is not None  # as it is within its GPU
    return comparison.capacity_bytes - comparison.estimate_bytes if success else -comparison.estimate_bytes


def group(comparisons: Sequence[Comparison], by: str = "all", value: str | int = "") -> Group:
    """Statistics of these cases."""
    moments = [comparison.moment_hit for comparison in comparisons if comparison.moment_hit is not None]
    return Group(by, value, len(comparisons), by_counter(comparisons), len(moments), sum(moments),
                 verdicts(comparisons), figures(comparisons))


def groups(comparisons: Sequence[Comparison]) -> list[Group]:
    """The group of all cases, then one for each sorted value of each label, in the order of :data:`LABELS`."""
    result = [group(comparisons)]
    for label in LABELS:
        parts = split(comparisons, partial(_label, label))
        result += [group(part, label, value) for value, part in sorted(parts.items())]
    return result


def _label(label: str, comparison: Comparison) -> str | int:
    return comparison.case.labels[label]


def split(comparisons: Iterable[Comparison], key: Callable[[Comparison], Hashable]) -> dict:
    """Key -> the comparisons with that key, in order."""
    parts: dict[Hashable, list[Comparison]] = {}
    for comparison in comparisons:
        parts.setdefault(key(comparison), []).append(comparison)
    return parts
