"""Draws the timeline as a chart of text characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.answer.prediction import Prediction
from predictor.events.events import Factor, Moment
from predictor.report.timeline_columns import STACK, Column, Stretch, columns
from predictor.report.units import GIB, size_text

if TYPE_CHECKING:
    from rich.text import Text

# Each factor's character, its replacement on ASCII terminals, and its colour.
MARKS = {
    Factor.PARAMETERS: ("█", "P", "blue"),
    Factor.OPTIMIZER_STATES: ("▓", "O", "cyan"),
    Factor.GRADIENTS: ("▒", "G", "green"),
    Factor.INPUTS: ("▪", "I", "white"),
    Factor.ACTIVATIONS: ("░", "A", "yellow"),
    Factor.COMMUNICATION: ("◆", "C", "magenta"),
    Factor.TEMPORARIES: ("×", "T", "red"),
    Factor.ALLOCATOR: ("·", "R", "bright_black"),
    Factor.KV_CACHE: ("◇", "K", "bright_green"),
}
RESERVED = ("━", "=", "bold")
"""The line of reserved bytes, as in :data:`MARKS`."""
Cell = tuple[str, str | None]
"""A character and its colour."""
AXIS_WIDTH = 8
LEAST = 6  # characters that a moment gets at least, for its name
SHORT = {Moment.INIT: "init", Moment.FORWARD: "fwd", Moment.BACKWARD: "bwd", Moment.OPTIMIZER_STEP: "opt",
         Moment.EVALUATION: "eval", Moment.PREFILL: "prefill", Moment.DECODE: "decode"}


def picture(prediction: Prediction, width: int, height: int = 16, ascii_only: bool = False) -> Text:
    """Live bytes over start-up and three steps, stacked by factor, with reserved bytes as a line above them.

    ``^`` marks the peak. Where the line would be inside the stack it is left out.

    Args:
        width, height: size of the chart in characters.
    """
    from rich.text import Text

    drawn, stretches = columns(prediction.timeline(), max(20, width - AXIS_WIDTH), least=LEAST)
    top = max(max(column.bytes, column.reserved_bytes) for column in drawn) or 1
    capacity = prediction.capacity_bytes
    near_capacity = capacity if capacity and top / 2 < capacity <= top * 1.5 else None
    scale = max(top, near_capacity or 0)
    text = Text()
    for row in range(height, 0, -1):
        low, high = scale * (row - 1) / height, scale * row / height
        label = f"{high / GIB:6.1f} ┤" if (height - row) % 4 == 0 else f"{'':6} │"
        text.append(label.translate(PLAIN) if ascii_only else label)
        cells: list[Cell] = [_cell(column, low, high, ascii_only) for column in drawn]
        if near_capacity is not None and low < near_capacity <= high:
            cells = _capacity_line(cells, f" capacity {size_text(near_capacity)} ")
        for mark, colour in cells:
            text.append(mark, colour)
        text.append("\n")
    for line in (_peak_line(drawn), *_labels(stretches)):
        text.append(" " * AXIS_WIDTH + line.rstrip() + "\n")
    return text.append(_legend(drawn, width, ascii_only))


PLAIN = str.maketrans("┤│", "||")
"""Replaces the axis's characters on ASCII terminals."""


def _cell(column: Column, low: float, high: float, ascii_only: bool) -> Cell:
    """The character of a column in a row from ``low`` to ``high`` bytes."""
    factor = _at(column, (low + high) / 2)
    if factor is not None:
        return MARKS[factor][ascii_only], MARKS[factor][2]
    return (RESERVED[ascii_only], RESERVED[2]) if low < column.reserved_bytes <= high else (" ", None)


def _at(column: Column, height: float) -> Factor | None:
    """The factor whose layer in the stack covers ``height`` bytes; None above the stack."""
    floor = 0
    for factor in STACK:
        floor += column.bytes_by_factor.get(factor, 0)
        if height < floor:
            return factor
    return None


def _capacity_line(cells: list[Cell], note: str) -> list[Cell]:
    """A row with dashes in its empty cells, and the note in the first gap that has room for it."""
    line: list[Cell] = [("-", "red") if mark == " " else (mark, colour) for mark, colour in cells]
    start = "".join(mark for mark, _ in line).find("-" * len(note))
    if start >= 0:
        line[start: start + len(note)] = [(mark, "red") for mark in note]
    return line


def _peak_line(drawn: list[Column]) -> str:
    place = max(range(len(drawn)), key=lambda i: drawn[i].bytes)
    note = "^ peak"
    return " " * place + note if place + len(note) <= len(drawn) else " " * (place - 5) + "peak ^"


def _labels(stretches: list[Stretch]) -> tuple[str, str]:
    """The line that names the moments, and the line that names the steps."""
    moments = "".join(_fit("|" + SHORT[s.moment], s.stop - s.start) for s in stretches)
    steps = ""
    for before, s in zip([None, *stretches], stretches):
        if before is None or s.step != before.step:
            steps = steps[: s.start].ljust(s.start) + ("|start" if s.step == 0 else f"|step {s.step}")
    return moments, steps[: len(moments)]


def _fit(text: str, width: int) -> str:
    return text[:width].ljust(width)


def _legend(drawn: list[Column], width: int, ascii_only: bool) -> Text:
    from rich.text import Text

    text, used = Text(" " * AXIS_WIDTH), AXIS_WIDTH
    entries = [(MARKS[factor], factor.value) for factor in STACK
               if any(column.bytes_by_factor.get(factor) for column in drawn)]
    if any(column.reserved_bytes for column in drawn):
        entries.append((RESERVED, "reserved"))
    for (mark, letter, colour), name in entries:
        used += len(name) + 4
        if used > width:
            text.append("\n" + " " * AXIS_WIDTH)
            used = AXIS_WIDTH + len(name) + 4
        text.append(letter if ascii_only else mark, colour)
        text.append(f" {name}  ")
    return text
