"""Prints a measurement beside its prediction: moments, the measured peak, and operators that differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from calibrate.attribution import AtPeak, Attribution, Outcome
from calibrate.attribution.peak import Reason
from calibrate.records.record import Record
from calibrate.report.measurement import difference, title
from predictor.common.json_dataclasses import to_plain
from predictor.events.events import MOMENTS, Factor
from predictor.report.layout import table, wrapped
from predictor.report.units import gib, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST = 15
"""Largest number of rows of a table of differences. The JSON has all rows."""
DIFFERENCE = "predicted less\nmeasured (bytes)"
REASONS = {
    Reason.MATCHED: "as predicted",
    Reason.OTHER_SIZE: "another size",
    Reason.DEVICE_ONLY: "only measured",
    Reason.NEVER_CAME: "never came",
    Reason.ALIVE_ONLY_MEASURED: "longer alive",
    Reason.ALIVE_ONLY_PREDICTED: "not alive",
}
"""State of a buffer at the measured peak, compared with the prediction -> its name in tables."""


def report(console: Console, record: Record, attribution: Attribution) -> None:
    """Prints the whole output of ``peakcast explain --measured``."""
    peak = attribution.at_peak()
    for text, style in ((headline(peak), "bold"), (title(record), "dim")):
        for line in wrapped(console, text, indent=0):
            console.print(line, style=style)
    console.print()
    console.print(moments(attribution))
    console.print()
    place = f" in {peak.module}" if peak.module else ""
    console.print(f"The measured peak: {peak.moment.value} of step {peak.step}, {peak.operator}{place}", style="bold")
    console.print(reasons(peak))
    console.print()
    _differences(console, "What differs there, by operator (bytes; predicted less measured)", _at_peak(peak),
                 ("operator", "factor", "why", "n", "measured", "predicted", "difference"))
    _differences(console, "What differs in the whole job, by operator (bytes)", _in_the_job(attribution),
                 ("operator", "factor", "moment", "measured", "predicted", "allocations"))
    for line in notes(attribution):
        for part in wrapped(console, line, indent=0):
            console.print(part)


def headline(peak: AtPeak) -> str:
    """Measured and predicted peak in one line."""
    gap = -peak.difference_bytes
    how = f"{size_text(abs(gap))} {'more' if gap > 0 else 'less'}" if gap else "the same to the byte"
    return (f"Measured peak {size_text(peak.measured_bytes)} requested, {how}"
            f"{' than' if gap else ' as'} predicted{f' ({abs(gap):,} bytes)' if gap else ''}.")


def moments(attribution: Attribution) -> Table:
    """A table with a row for each moment of each step, measured and predicted."""
    measured, predicted = attribution.recorded.highest(), attribution.predicted.highest()
    rows = table("moment (requested GiB)", "step", "measured", "predicted", DIFFERENCE, "off by %", numbers=True)
    peak = attribution.at_peak()
    for step, moment in sorted(measured.keys() | predicted.keys(), key=lambda at: (at[0], MOMENTS.index(at[1]))):
        size, expected = measured.get((step, moment)), predicted.get((step, moment))
        gaps = ("", "") if size is None or expected is None else (f"{expected - size:+,}", difference(expected, size))
        rows.add_row(moment.value, str(step), "" if size is None else gib(size),
                     "" if expected is None else gib(expected), *gaps,
                     style="bold" if (step, moment) == (peak.step, peak.moment) else None)
    return rows


def reasons(peak: AtPeak) -> Table:
    """A table of the peak by reason. The differences add up to predicted less measured bytes."""
    rows = table("buffers there", "n", "measured GiB", "predicted GiB", DIFFERENCE, numbers=True)
    for why, total in peak.by_reason().items():
        if total.buffers:
            rows.add_row(REASONS[why], f"{total.buffers:,}", gib(total.measured_bytes), gib(total.predicted_bytes),
                         f"{total.predicted_bytes - total.measured_bytes:+,}")
    if peak.elsewhere_bytes:
        rows.add_row("the predicted peak is elsewhere", "", "", gib(peak.elsewhere_bytes),
                     f"{peak.elsewhere_bytes:+,}")
    rows.add_row("peak", "", gib(peak.measured_bytes), gib(peak.predicted_bytes), f"{peak.difference_bytes:+,}",
                 style="bold")
    return rows


def notes(attribution: Attribution) -> list[str]:
    """Sentences about the outcomes of allocations, and about buffers that are freed at another point."""
    count = attribution.count()
    lines = [f"{len(attribution.recorded):,} allocations recorded, {len(attribution.predicted):,} predicted: "
             f"{count[Outcome.MATCHED]:,} are the same, {count[Outcome.OTHER_SIZE]:,} have another size, "
             f"{count[Outcome.DEVICE_ONLY]:,} only the device made, {count[Outcome.NEVER_CAME]:,} never came."]
    if count[Outcome.NOT_REACHED]:
        lines.append(f"The job ran out of memory before it got to {count[Outcome.NOT_REACHED]:,} predicted ones.")
    lifetimes = attribution.lifetimes()
    if lifetimes:
        size = sum(lifetime.bytes for lifetime in lifetimes)
        lines.append(f"{len(lifetimes):,} of them, {size_text(size)} one by one, are freed at another point than "
                     "predicted: --json lists them.")
    return lines


def document(record: Record, attribution: Attribution) -> dict[str, Any]:
    """The whole comparison as JSON's types."""
    peak, measured, predicted = attribution.at_peak(), attribution.recorded.highest(), attribution.predicted.highest()
    places = sorted(measured.keys() | predicted.keys(), key=lambda at: (at[0], MOMENTS.index(at[1])))
    return to_plain({
        "workload": record.workload, "rank": record.rank, "measured_on": record.job.measured_on,
        "measured_peak_requested_bytes": peak.measured_bytes, "predicted_peak_requested_bytes": peak.predicted_bytes,
        "difference_bytes": peak.difference_bytes,
        "moments": [{"step": step, "moment": moment, "measured_requested_bytes": measured.get((step, moment)),
                     "predicted_requested_bytes": predicted.get((step, moment))} for step, moment in places],
        "allocations": {outcome.value: count for outcome, count in attribution.count().items()},
        "at_peak": {
            "step": peak.step, "moment": peak.moment, "module": peak.module, "operator": peak.operator,
            "predicted_there_bytes": peak.predicted_there_bytes, "elsewhere_bytes": peak.elsewhere_bytes,
            "reasons": {why.value: total._asdict() for why, total in peak.by_reason().items()},
            "items": [_with_difference(item) for item in peak.items]},
        "operators": [_with_difference(row) for row in attribution.rows()],
        "extras": attribution.extras(), "lifetimes": attribution.lifetimes()})


def _with_difference(row) -> dict[str, Any]:
    return asdict(row) | {"difference_bytes": row.difference_bytes}


def _at_peak(peak: AtPeak) -> list[tuple[int, list[str]]]:
    sums: dict[tuple[str, Factor | None, Reason], list[int]] = {}
    for item in peak.items:
        total = sums.setdefault((item.operator, item.factor, item.why), [0, 0, 0])
        for place, value in enumerate((1, item.measured_bytes, item.predicted_bytes)):
            total[place] += value
    return [(predicted - measured, [operator, _factor(factor), REASONS[why], f"{count:,}", f"{measured:,}",
                                    f"{predicted:,}", f"{predicted - measured:+,}"])
            for (operator, factor, why), (count, measured, predicted) in sums.items()]


def _in_the_job(attribution: Attribution) -> list[tuple[int, list[str]]]:
    return [(row.difference_bytes, [row.operator, _factor(row.factor), row.moment.value, f"{row.recorded_bytes:,}",
                                    f"{row.predicted_bytes:,}", f"{row.recorded:,} / {row.predicted:,}"])
            for row in attribution.rows() if row.matched < max(row.predicted, row.recorded)]


def _factor(factor: Factor | None) -> str:
    return factor.value if factor else ""


def _differences(console: Console, heading: str, differences: Iterable[tuple[int, list[str]]],
                 heads: tuple[str, ...]) -> None:
    ordered = sorted(differences, key=lambda row: -abs(row[0]))
    if not ordered:
        return
    console.print(heading, style="bold")
    rows = table(*heads, numbers=True)
    rows.columns[0].no_wrap = False  # names give way first
    rows.columns[1].justify = rows.columns[2].justify = "left"
    for _, cells in ordered[:MOST]:
        rows.add_row(*cells)
    if len(ordered) > MOST:
        rows.add_row(f"{len(ordered) - MOST} more (--json)")
    console.print(rows)
    console.print()
