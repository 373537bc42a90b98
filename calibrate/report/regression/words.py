"""The sentences of a regression report, which all its forms share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from calibrate.regression.baselines import BASELINES, Baseline
from calibrate.regression.baselines.grid import OURS
from calibrate.regression.cases import Skipped
from calibrate.regression.causes import FAR, Explained, description
from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.regression.statistics import VERDICTS, Errors, Group
from predictor.events.events import Factor
from predictor.report.units import factor_text, gib, size_text

MOST_CAUSES = 4
"""Largest number of causes that are listed for a case. The JSON has all."""


def headline(report: Report) -> str:
    """Numbers of measurements, models and skipped entries, in one sentence."""
    models = len({comparison.case.model for comparison in report.comparisons})
    where = sorted({comparison.case.measured_on for comparison in report.comparisons})
    on = " and ".join({"device": "on real GPUs", "emulated": "on emulated GPUs"}[name] for name in where)
    left = f"; {len(report.skipped)} skipped" if report.skipped else ""
    return f"{count(len(report.comparisons), 'measurement')} {on}, {count(models, 'model')}{left}."


def summary(report: Report) -> str:
    """Errors of the predictions in one sentence; empty if no peak was measured."""
    errors = report.overall.errors
    parts = [f"{counter} {_off(errors[counter])}" for counter in ("allocated", "reserved") if counter in errors]
    if not parts:
        return ""
    overall = report.overall
    moments = f"; the peak is in the predicted moment in {overall.moment_hits} of {overall.moments} cases" \
        if overall.moments else ""
    return f"Predictions are off by: {'; '.join(parts)}{moments}."


def _off(errors: Errors) -> str:
    if not errors.worst:
        return "nothing"
    return f"{percent(errors.mape)} % on average, {percent(abs(errors.worst))} % at worst"


def count(number: int, what: str) -> str:
    """A number with its noun: ``2 models``, ``1 model``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def percent(error: float | None) -> str:
    """A fraction in percent: ``-0.0081``, ``12.34``; ``<0.0001`` for smaller sizes, ``0`` for zero, empty for None."""
    if error is None:
        return ""
    if error == 0:
        return "0"
    size = abs(error)
    return "<0.0001" if size < 1e-6 else f"{100 * error:.4f}" if size < 0.01 else f"{100 * error:.2f}"


def verdict_lines(group: Group) -> list[str]:
    """Verdicts against the outcomes of the jobs."""
    survived, died = group.verdicts.survived, group.verdicts.died
    outcomes = "; ".join(f"{verdict.replace('_', ' ')}: {survived[verdict]} survived, {died[verdict]} died"
                         for verdict in VERDICTS if survived[verdict] or died[verdict])
    false_fits = f"Said to fit and ran out of memory: {', '.join(group.verdicts.false_fits) or 'none'}."
    if not outcomes:
        return ["No case has a capacity that its GPU has, so there are no verdicts."]
    rest = group.cases - sum(survived.values()) - sum(died.values())
    beyond = f" The other {rest} ran with more memory than their GPU has, or as much as they liked." if rest else ""
    return [f"Verdicts: {outcomes}.{beyond}", false_fits]


def xmem_lines(group: Group) -> list[str]:
    """Both figures of xMem, with their meaning."""
    xmem = group.xmem
    if xmem.failure_probability is None:
        return []
    lines = [f"Estimation failures (xMem's PEF): {xmem.failure_probability:.2%} of {count(xmem.cases, 'job')} would "
             "not survive on what was estimated, or the verdict was wrong."]
    if xmem.conservation_bytes is not None:
        lines.append(f"Memory conservation potential (xMem's MCP): {size_text(round(xmem.conservation_bytes))} a job "
                     f"could go to others, over {count(xmem.conservation_cases, 'job')} that ran to their end with no "
                     "more than their GPU has.")
    return lines


def gate_lines(gate: Result) -> tuple[str, ...]:
    """Broken limits of a gate, or a line that it holds."""
    return gate.broken or (f"{gate.gate.name}: holds ({count(gate.cases, 'case')})",)


def far_line(report: Report) -> str:
    """Heading of the worst cases."""
    beyond = sum(explained.comparison.worst_error > FAR for explained in report.explained)
    if not report.overall.errors:
        return "No job that ran to its end has a measured peak."
    return f"Furthest off ({beyond} beyond {FAR:.0%})" if report.explained else "Every prediction is equal to the byte."


def explained_lines(explained: Explained) -> list[str]:
    """A case with its errors, its predicted factors, and the causes of the difference."""
    case, peaks = explained.comparison.case, explained.comparison.peaks
    sizes = ", ".join(f"{counter} {gib(peak.both_bytes[0])} GiB {percent(peak.error)} %"
                      for counter, peak in peaks.items() if peak.error is not None)
    factors = factor_text({Factor(name): size for name, size in explained.comparison.factors.items()}, most=4)
    lines = [f"{case.id} {case.name}: {sizes}", f"  predicted there: {factors} GiB; {explained.note}."]
    if len(explained.causes) > 1:
        lines += [f"    {description(cause)}" for cause in explained.causes[:MOST_CAUSES]]
    if explained.command:
        lines += [f"    {explained.command}", f"    peakcast explain --measured {case.id}.json"]
    return lines


def skipped_line(skipped: Skipped) -> str:
    """A skipped measurement: its place, its name and the reason."""
    return f"{skipped.source}{f' ({skipped.name})' if skipped.name else ''}: {skipped.why}"


def method_name(method: str) -> str:
    """Name of a method in tables, such as ``Eq. 1`` or ``DeepSpeed``."""
    return OURS if method == OURS else BASELINES[method].name


def method_line(baseline: Baseline) -> str:
    """A sentence about a method: the memory that it counts, and its source."""
    return (f"{baseline.name} counts {baseline.counts}. It does not count {baseline.does_not_count}. "
            f"Source: {baseline.source}.")


def silent_lines(report: Report) -> list[str]:
    """Numbers of cases that other methods have no estimate of, with the reasons."""
    reasons_of: dict[str, Counter[str]] = {}
    for row in report.grid.rows:
        for method, estimate in row.estimates.items():
            if estimate.bytes is None:
                reasons_of.setdefault(method, Counter())[estimate.why_not] += 1
    return [f"{method_name(method)} says nothing of {count(times, 'case')}: {why}"
            for method, reasons in reasons_of.items() for why, times in reasons.most_common()]


def other_methods(report: Report) -> Sequence[Baseline]:
    """The other methods that the report has estimates of."""
    return [BASELINES[method] for method in report.grid.methods[1:]]
