"""A regression report as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.report.regression import tables, words
from predictor.report import table as one_style

if TYPE_CHECKING:
    from rich.console import Console

LONG = 8
"""Characters of a head that has room in one line."""


def report(console: Console, made: Report, gates: Sequence[Result] = ()) -> None:
    """All of it but the single cases: overall, by group, verdicts, other methods, the worst, what was skipped, gates.
    """
    console.print(words.headline(made), style="bold")
    _lines(console, words.summary(made))
    console.print()
    if made.overall.errors:
        _table(console, tables.overall(made.overall))
    _table(console, tables.by_group(made.groups, short=True))
    _lines(console, *words.verdict_lines(made.overall), *words.xmem_lines(made.overall))
    console.print()
    if made.paper.rows:
        _head(console, tables.paper(made.paper).title)
        _table(console, tables.paper(made.paper))
    if words.asked(made):
        _head(console, tables.methods(made.grid).title)
        _table(console, tables.methods(made.grid))
        _lines(console, *map(words.method_line, words.asked(made)), *words.silent_lines(made))
        console.print()
    _head(console, words.far_line(made))
    for one in made.explained:
        _lines(console, *words.explained_lines(one))
    if made.skipped:
        console.print()
        _head(console, "Skipped")
        _lines(console, *map(words.skipped_line, made.skipped))
    if gates:
        console.print()
    for gate in gates:
        for line in words.gate_lines(gate):
            console.print(f"gate {line}", style="bold red" if gate.broken else "green", soft_wrap=True)


def _table(console: Console, table: tables.Table) -> None:
    """With two columns of text or more, the first becomes lines of its own."""
    folded = table.texts > 1
    heads = [head.replace(" ", "\n", 1) if len(head) > LONG else head for head in table.heads[folded:]]
    drawn = one_style.table(*heads, numbers=True)
    for column in drawn.columns[:table.texts - folded]:
        column.justify = "left"
    before = "all"
    for first, *cells in table.rows:
        if not folded:
            cells = [first, *cells]
        elif any(cells[:table.texts - 1]):
            if first != before:
                drawn.add_row(first, style="bold")
            cells[0], before = "  " + cells[0], first
        else:
            cells[0] = first
        drawn.add_row(*cells)
    console.print(drawn)
    console.print()


def _head(console: Console, text: str) -> None:
    console.print(text, style="bold")


def _lines(console: Console, *lines: str) -> None:
    for text in lines:
        indent = len(text) - len(text.lstrip())
        for line in one_style.wrapped(console, text.strip(), indent=indent):
            console.print(line)
