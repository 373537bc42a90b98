"""Renders the short answer of ``peakcast predict``: at most 40 lines of 100 characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.answer.prediction import Prediction
from predictor.report import remedies, table
from predictor.report.layout import counted, details_line, numbered, on_one_screen, print_wrapped

if TYPE_CHECKING:
    from rich.console import Console

SIZES = ((remedies.MOST, remedies.MOST_NAMED), (remedies.MOST, 3), (remedies.MOST, 1), (2, 3), (1, 1))
"""Remedies, and changes that a sentence names."""


def report(console: Console, prediction: Prediction) -> None:
    """Prints the verdict, the peaks, the factors, cautions, remedies, and where the rest is."""
    def sized(console: Console, size: tuple[int, int]) -> None:
        table.head(console, prediction, brief=True)
        console.print(table.peak_table(prediction, console.width, small=False))
        console.print()
        advice = remedies.short(prediction.remedies, prediction.workload.get("mode", "training"), brief=True,
                                most=size[0], most_named=size[1])
        print_wrapped(console, *map(remedies.caution, prediction.cautions), *advice, _rest(prediction, size[0]))

    on_one_screen(console, sized, SIZES)


def _rest(prediction: Prediction, shown: int) -> str:
    """A sentence that says what ``--details`` has beside the short answer, which shows so many remedies."""
    more = sum(bool(remedy.fits) for remedy in prediction.remedies or ()) - shown
    return details_line(f"{numbered(more, 'further change')} that would fit" if more > 0 else "",
                        *left_out(prediction), "all moments")


def left_out(prediction: Prediction) -> tuple[str, ...]:
    """What no short answer has: the sources of the values, cautions, and defaults."""
    return (f"what was read from {prediction.source.file}" if prediction.source else "",
            counted(len(prediction.not_modelled), "caution") or "0 further cautions",
            f"{len(table.defaults(prediction))} defaults")
