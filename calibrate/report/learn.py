"""What was learned, on the terminal and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrate.learn.learn import Check
from predictor.formula.learned import Learned
from predictor.report import table as tables
from predictor.report.units import size_text

if TYPE_CHECKING:
    from rich.console import Console


def document(path: str, learned: Learned, checks: list[Check]) -> dict[str, Any]:
    """The result as JSON data."""
    return {
        "formula": path, "command": list(learned.command),
        "lists": [{"events": len(found.events), "shapes": [list(shape) for shape in found.shapes],
                   "sizes": len(found.events.sizes), "interpolated": list(found.interpolated),
                   "moved_frees": found.moved_frees} for found in learned.lists],
        "checked": [{"shape": list(row.shape), "measured": row.measured, "predicted": row.predicted}
                    for row in checks],
        "provenance": {key: value for key, value in learned.provenance.items() if key != "checked"}}


def report(console: Console, path: str, learned: Learned, checks: list[Check]) -> None:
    """The lists, what is not exact, and every recorded peak beside the formula's."""
    jobs = f"{len(checks)} recorded job{'s' if len(checks) > 1 else ''}"
    where = f"{learned.provenance['measured_on']}, {learned.provenance['gpu'] or 'unknown GPU'}"
    console.print(f"Learned {path} from {jobs} ({where}).", style="bold")
    if len(checks) == 1:
        console.print("Nothing varied: it is a replay of that job at its one shape.")
    for number, found in enumerate(learned.lists, 1):
        console.print(f"List {number}: {len(found.events):,} events, {len(found.events.sizes):,} sizes, "
                      f"{len(found.shapes)} shape{'s' if len(found.shapes) > 1 else ''}.")
        if found.moved_frees:
            console.print(f"  {found.moved_frees:,} buffers are freed at other points in other jobs: held until the "
                          "latest.")
        for row in found.interpolated[:5]:
            place = f" in {row['module']}" if row["module"] else ""
            console.print(f"  interpolated: {row['buffers']} of {row['operator']}{place}, off by at most "
                          f"{row['error_bytes']:,} bytes where that was tried")
        if len(found.interpolated) > 5:
            console.print(f"  … and {len(found.interpolated) - 5} more operators (--json has them)")
    for line in learned.provenance["differences"]:
        for wrapped in tables.wrapped(console, line):
            console.print(wrapped)
    console.print()
    rows = tables.table("recorded at", "requested", "off by", "allocated", "off by", "reserved", "off by", numbers=True)
    for check in checks:
        batch, sequence, images = check.shape
        cells = []
        for name, size in check.measured.items():
            cells += [size_text(size), f"{check.error_bytes[name]:+,}" if check.error_bytes[name] else "0"]
        samples = f"{batch} x {sequence:,}" if sequence else f"batch {batch}"
        rows.add_row(samples + (f", {images} images" if images not in (0, batch) else ""), *cells)
    console.print(rows)
