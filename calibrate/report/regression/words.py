"""What every form of a regression report says in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from calibrate.regression.baselines import BASELINES, Baseline
from calibrate.regression.baselines.grid import OURS
from calibrate.regression.cases import Skipped
from calibrate.regression.causes import FAR, Explained, told
from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.regression.statistics import VERDICTS, Errors, Group
from predictor.events.events import Factor
from predictor.report.units import factor_text, gib, size_text

MOST_CAUSES = 4
"""Lines for a case; the JSON has all."""


def headline(made: Report) -> str:
    """How many of what."""
    models = len({one.case.model for one in made.comparisons})
    where = sorted({one.case.measured_on for one in made.comparisons})
    on = " and ".join({"device": "on real GPUs", "emulated": "on emulated GPUs"}[name] for name in where)
    left = f"; {len(made.skipped)} skipped" if made.skipped else ""
    return f"{count(len(made.comparisons), 'measurement')} {on}, {count(models, 'model')}{left}."


def summary(made: Report) -> str:
    """How near predictions are, in one sentence; empty where no peak was measured."""
    errors = made.overall.errors
    parts = [f"{counter} {_off(errors[counter])}" for counter in ("allocated", "reserved") if counter in errors]
    if not parts:
        return ""
    moments = f"; the peak is in the predicted moment in {made.overall.moment_hits} of {made.overall.moments} cases" \
        if made.overall.moments else ""
    return f"Predictions are off by: {'; '.join(parts)}{moments}."


def _off(errors: Errors) -> str:
    if not errors.worst:
        return "nothing"
    return f"{percent(errors.mape)} % on average, {percent(abs(errors.worst))} % at worst"


def count(number: int, what: str) -> str:
    """``2 models``, ``1 model``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def percent(error: float | None) -> str:
    """A fraction in percent: ``-0.0081``, ``12.34``; ``<0.0001`` if its size is less, ``0`` if there is nothing."""
    if error is None:
        return ""
    if error == 0:
        return "0"
    size = abs(error)
    return "<0.0001" if size < 1e-6 else f"{100 * error:.4f}" if size < 0.01 else f"{100 * error:.2f}"


def verdict_lines(group: Group) -> list[str]:
    """What was said against what became of the jobs."""
    found = group.verdicts
    said = "; ".join(f"{verdict.replace('_', ' ')}: {found.survived[verdict]} survived, {found.died[verdict]} died"
                     for verdict in VERDICTS if found.survived[verdict] or found.died[verdict])
    false = f"Said to fit and ran out of memory: {', '.join(found.false_fits) or 'none'}."
    if not said:
        return ["No case has a capacity that its GPU has, so there are no verdicts."]
    rest = group.cases - sum(found.survived.values()) - sum(found.died.values())
    beyond = f" The other {rest} ran with more memory than their GPU has, or as much as they liked." if rest else ""
    return [f"Verdicts: {said}.{beyond}", false]


def xmem_lines(group: Group) -> list[str]:
    """Both figures of xMem, with what they mean."""
    found = group.xmem
    if found.failure_probability is None:
        return []
    lines = [f"Estimation failures (xMem's PEF): {found.failure_probability:.2%} of {count(found.cases, 'job')} would "
             "not survive on what was estimated, or the verdict was wrong."]
    if found.conservation_bytes is not None:
        lines.append(f"Memory conservation potential (xMem's MCP): {size_text(round(found.conservation_bytes))} a job "
                     f"could go to others, over {count(found.conservation_cases, 'job')} that ran to their end with no "
                     "more than their GPU has.")
    return lines


def gate_lines(gate: Result) -> tuple[str, ...]:
    """What is broken, or that it holds."""
    return gate.broken or (f"{gate.gate.name}: holds ({count(gate.cases, 'case')})",)


def far_line(made: Report) -> str:
    """Head of the worst cases."""
    beyond = sum(one.comparison.worst_error > FAR for one in made.explained)
    if not made.overall.errors:
        return "No job that ran to its end has a measured peak."
    return f"Furthest off ({beyond} beyond {FAR:.0%})" if made.explained else "Every prediction is equal to the byte."


def explained_lines(one: Explained) -> list[str]:
    """The case, what its peak is predicted to be made of, and what differs."""
    case, peaks = one.comparison.case, one.comparison.peaks
    sizes = ", ".join(f"{counter} {gib(peak.measured_bytes)} GiB {percent(peak.error)} %"
                      for counter, peak in peaks.items() if peak.error is not None)
    factors = factor_text({Factor(name): size for name, size in one.comparison.factors.items()}, most=4)
    lines = [f"{case.id} {case.name}: {sizes}", f"  predicted there: {factors} GiB; {one.note}."]
    if len(one.causes) > 1:
        lines += [f"    {told(cause)}" for cause in one.causes[:MOST_CAUSES]]
    if one.command:
        lines += [f"    {one.command}", f"    peakcast explain --measured {case.id}.json"]
    return lines


def skipped_line(one: Skipped) -> str:
    """Where, what, why."""
    return f"{one.source}{f' ({one.name})' if one.name else ''}: {one.why}"


def method_name(method: str) -> str:
    """For tables: ``Eq. 1``, ``DeepSpeed``."""
    return OURS if method == OURS else BASELINES[method].name


def method_line(baseline: Baseline) -> str:
    """What its number holds and whose it is."""
    return (f"{baseline.name} counts {baseline.counts}. It does not count {baseline.does_not_count}. "
            f"Source: {baseline.source}.")


def silent_lines(made: Report) -> list[str]:
    """Where other methods say nothing, and why."""
    found: dict[str, Counter[str]] = {}
    for row in made.grid.rows:
        for method, estimate in row.estimates.items():
            if estimate.bytes is None:
                found.setdefault(method, Counter())[estimate.why_not] += 1
    return [f"{method_name(method)} says nothing of {count(times, 'case')}: {why}"
            for method, reasons in found.items() for why, times in reasons.most_common()]


def asked(made: Report) -> Sequence[Baseline]:
    """The other methods that the report has."""
    return [BASELINES[method] for method in made.grid.methods[1:]]
