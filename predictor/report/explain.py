"""Renders the explanation of a prediction: its highest moments as formulas, its modules, its layers, and a chart.

The short answer has at most 40 lines of 100 characters, unless the user asks for more moments or layers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from predictor.answer.prediction import Candidate, Prediction
from predictor.common.safe_text import printable
from predictor.report import remedies, summary
from predictor.report import table as tables
from predictor.report.formula import formula_text, terms_of
from predictor.report.layers import collapse
from predictor.report.layout import details_line, on_one_screen, print_wrapped, shortened, table, wrapped
from predictor.report.text_chart import picture
from predictor.report.units import factor_text, gib, share, size_text

if TYPE_CHECKING:
    from rich.console import Console

OTHER_COLUMNS = 46  # characters of the layer table's columns beside the layer's path
ALL = sys.maxsize
"""A number of layers that is not limited."""
SIZES = ((3, 5), (2, 5), (2, 3), (1, 3), (1, 1))
"""Moments and layers of the short answer, the most that fit."""
ONE_ASKED = (2, 5)
"""The same where the user asks for a number of the others, whatever fits."""


def short(console: Console, prediction: Prediction, *, moments: int | None = None, layers: int | None = None) -> None:
    """Prints the verdict, the highest moments, the factors, the largest layers, cautions, and where the rest is.

    Args:
        moments, layers: numbers that the user asked for; None: as many as fit on one screen.
    """
    def sized(console: Console, size: tuple[int, int]) -> None:
        tables.head(console, prediction, peaks=False)
        _moments(console, prediction, size[0])
        console.print(tables.peak_table(prediction, console.width, small=False))
        console.print()
        _layers(console, prediction, size[1], brief=True)
        console.print()
        print_wrapped(console, *map(remedies.caution, prediction.cautions), details_line(
            *summary.left_out(prediction), "all peaks", "more moments and layers", "the run as a chart"))

    asked = (moments or ONE_ASKED[0], layers or ONE_ASKED[1])
    on_one_screen(console, sized, [asked] if moments or layers else SIZES)


def report(console: Console, prediction: Prediction, *, moments: int = 5, layers: int = 15) -> None:
    """Prints the whole result of ``peakcast explain``.

    Args:
        moments: number of highest moments to print.
        layers: number of largest layers to print; ``ALL`` prints them all.
    """
    tables.head(console, prediction)
    _moments(console, prediction, moments)
    tables.factors(console, prediction)
    _layers(console, prediction, layers)
    console.print()
    console.print("Allocated and reserved bytes from start-up to the third step, in GiB", style="bold")
    ascii_only = not console.encoding.lower().startswith("utf")
    console.print(picture(prediction, console.width, ascii_only=ascii_only), no_wrap=True, crop=True)
    console.print()
    tables.tail(console, prediction)


def document(prediction: Prediction) -> dict[str, Any]:
    """The result JSON, with the highest moments, the layers and the timeline added."""
    result = prediction.to_json()
    result["highest_moments"] = [
        {"moment": c.moment.value, "step": c.step, "module": c.module, "operator": c.operator,
         "requested_bytes": c.requested_bytes, "terms_bytes": terms_of(c)} for c in _highest(prediction)]
    result["layers"] = {path: {f.value: size for f, size in split.items()} for path, split in prediction.layers.items()}
    for name in ("modules_attributed", "layers_attributed"):
        result[name] = {path: {f.value: size for f, size in split.items()}
                        for path, split in getattr(prediction, name).items()}
    curve = prediction.timeline()
    result["timeline"] = {
        "event": list(curve.index), "step": list(curve.step), "moment": [moment.value for moment in curve.moment],
        "requested_bytes_by_factor": {f.value: list(sizes) for f, sizes in curve.bytes_by_factor.items()},
        "allocated_bytes": list(curve.allocated_bytes), "reserved_bytes": list(curve.reserved_bytes)}
    return result


def _highest(prediction: Prediction) -> list[Candidate]:
    return sorted(prediction.candidates, key=lambda candidate: -candidate.requested_bytes)


def _moments(console: Console, prediction: Prediction, most: int) -> None:
    console.print("The highest moments, with what each comes to at another shape", style="bold")
    for number, candidate in enumerate(_highest(prediction)[:most], 1):
        when = "start-up" if candidate.step == 0 else f"step {candidate.step}"
        place = f"{candidate.operator} in {candidate.module}" if candidate.module else candidate.operator
        head = f"{number}. {size_text(candidate.requested_bytes)}  {candidate.moment.value}, {when}: {place}"
        for line in wrapped(console, head, indent=2):
            console.print(line)
        terms = formula_text(candidate, prediction.workload).split(" + ")
        # non-breaking spaces keep a term on one line
        text = "=\xa0" + " + ".join(term.replace(" ", "\xa0") for term in terms)
        for line in wrapped(console, text, indent=5):
            console.print(line)
    if not prediction.candidates:
        console.print("  (none: this prediction was made without them)")
    console.print()


def _layers(console: Console, prediction: Prediction, most: int, *, brief: bool = False) -> None:
    """Prints the largest layers; each in one line, with its largest factor, if ``brief``."""
    from rich.text import Text

    rows = collapse(prediction.layers_attributed or prediction.layers)
    total = prediction.peak_allocated_bytes
    grid = table("layers at the peak", "n", "GiB", "%", "mostly" if brief else "of which")
    grid.columns[0].no_wrap = True  # the path is folded here, so that rich narrows only the last column
    room = max(23, console.width - OTHER_COLUMNS)
    for column in grid.columns[1:4]:
        column.justify, column.no_wrap = "right", True
    for row in rows[:most]:
        path = printable(row.path) or "(shared by all modules)"
        path = shortened(path, room) if brief else path
        folded = Text("\n".join(path[i: i + room] for i in range(0, len(path), room)))
        grid.add_row(folded, str(row.count), gib(row.bytes), share(row.bytes, total),
                     factor_text(row.factors, most=1 if brief else 3))
    rest = rows[len(rows[:most]):]
    if rest:
        size = sum(row.bytes for row in rest)
        grid.add_row(f"{len(rest)} more (--layers all)", str(sum(row.count for row in rest)), gib(size),
                      share(size, total), "")
    console.print(grid)
