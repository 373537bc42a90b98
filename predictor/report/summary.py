"""Renders the short answer of ``peakcast predict``: at most 40 lines of 100 characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.answer.prediction import Prediction
from predictor.report import remedies, table
from predictor.report.layout import counted, details_line, print_wrapped

if TYPE_CHECKING:
    from rich.console import Console


def report(console: Console, prediction: Prediction) -> None:
    """Prints the verdict, the peaks, the factors, cautions, remedies, and where the rest is."""
    table.head(console, prediction, brief=True)
    console.print(table.peak_table(prediction, console.width, small=False))
    console.print()
    advice = remedies.short(prediction.remedies, prediction.workload.get("mode", "training"), brief=True)
    print_wrapped(console, *map(remedies.caution, prediction.cautions), *advice, rest(prediction))


def rest(prediction: Prediction) -> str:
    """A sentence that says what ``--details`` has beside the short answer."""
    return details_line(*left_out(prediction), "all moments")


def left_out(prediction: Prediction) -> tuple[str, ...]:
    """What no short answer has: the sources of the values, cautions, and defaults."""
    return (f"what was read from {prediction.source.file}" if prediction.source else "",
            counted(len(prediction.not_modelled), "caution") or "0 further cautions",
            f"{len(table.defaults(prediction))} defaults")
