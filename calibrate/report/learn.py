"""Prints a learned formula and its check, or gives them as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrate.learn.learn import Check
from predictor.formula.learned import Learned
from predictor.report.layout import table, wrapped
from predictor.report.units import size_text

if TYPE_CHECKING:
    from rich.console import Console


def document(path: str, learned: Learned, checks: list[Check]) -> dict[str, Any]:
    """The result as JSON's types."""
    return {
        "formula": path, "command": list(learned.command),
        "lists": [{"events": len(event_list.events), "shapes": [list(shape) for shape in event_list.shapes],
                   "sizes": len(event_list.events.sizes), "interpolated": list(event_list.interpolated),
                   "moved_frees": event_list.moved_frees} for event_list in learned.lists],
        "checked": [{"shape": list(row.shape), "measured": row.measured, "predicted": row.predicted}
                    for row in checks],
        "provenance": {key: value for key, value in learned.provenance.items() if key != "checked"}}


def report(console: Console, path: str, learned: Learned, checks: list[Check]) -> None:
    """Prints the event lists, the sizes that are not exact, and every recorded peak beside the formula's."""
    jobs = f"{len(checks)} recorded job{'s' if len(checks) > 1 else ''}"
    where = f"{learned.provenance['measured_on']}, {learned.provenance['gpu'] or 'unknown GPU'}"
    console.print(f"Learned {path} from {jobs} ({where}).", style="bold")
    if len(checks) == 1:
        console.print("Nothing varied: it is a replay of that job at its one shape.")
    for number, event_list in enumerate(learned.lists, 1):
        console.print(f"List {number}: {len(event_list.events):,} events, {len(event_list.events.sizes):,} sizes, "
                      f"{len(event_list.shapes)} shape{'s' if len(event_list.shapes) > 1 else ''}.")
        if event_list.moved_frees:
            console.print(f"  {event_list.moved_frees:,} buffers are freed at other points in other jobs: held until "
                          "the latest.")
        for row in event_list.interpolated[:5]:
            place = f" in {row['module']}" if row["module"] else ""
            console.print(f"  interpolated: {row['buffers']} of {row['operator']}{place}, off by at most "
                          f"{row['error_bytes']:,} bytes where that was tried")
        if len(event_list.interpolated) > 5:
            console.print(f"  … and {len(event_list.interpolated) - 5} more operators (--json has them)")
    for line in learned.provenance["differences"]:
        for part in wrapped(console, line):
            console.print(part)
    console.print()
    rows = table("recorded at", "requested", "off by", "allocated", "off by", "reserved", "off by", numbers=True)
    for check in checks:
        batch, sequence, images = check.shape
        cells = []
        for name, size in check.measured.items():
            cells += [size_text(size), f"{check.error_bytes[name]:+,}" if check.error_bytes[name] else "0"]
        samples = f"{batch} x {sequence:,}" if sequence else f"batch {batch}"
        rows.add_row(samples + (f", {images} images" if images not in (0, batch) else ""), *cells)
    console.print(rows)
