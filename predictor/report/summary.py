"""Renders the short answer of ``peakcast predict``: at most 40 lines of 100 characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.answer.prediction import Prediction
from predictor.report import remedies, table
from predictor.report.layout import wrapped

if TYPE_CHECKING:
    from rich.console import Console


def report(console: Console, prediction: Prediction) -> None:
    """Prints the verdict, the peaks, the factors, cautions, remedies, and where the rest is."""
    table.head(console, prediction, brief=True)
    console.print(table.factor_table(prediction, console.width, small=False))
    console.print()
    advice = remedies.short(prediction.remedies, prediction.workload.get("mode", "training"))
    for sentence in (*map(remedies.caution, prediction.cautions), *advice, rest(prediction)):
        for line in wrapped(console, sentence, indent=0):
            console.print(line)


def rest(prediction: Prediction) -> str:
    """A sentence that says what ``--details`` has beside the short answer."""
    parts = [f"{len(prediction.not_modelled)} further cautions" if len(prediction.not_modelled) != 1 else
             "one further caution", f"{len(table.defaults(prediction))} defaults", "all moments"]
    if prediction.source:
        parts.insert(0, f"what was read from {prediction.source.file}")
    return f"--details shows {', '.join(parts[:-1])} and {parts[-1]}; --json has all as data."
