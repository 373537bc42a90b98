"""Prints a whole regression report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.report.regression import tables, words
from predictor.report import layout

if TYPE_CHECKING:
    from rich.console import Console

LONG = 8
"""Longest head in characters that is not broken into two lines."""


def report(console: Console, report: Report, gates: Sequence[Result] = ()) -> None:
    """Prints everything except the table of single cases: errors overall and by group, verdicts, other methods, the
    worst cases, skipped measurements, gates.
    """
    console.print(words.headline(report), style="bold")
    lines(console, *filter(None, (words.summary(report), report.real_gpus)))
    console.print()
    if report.overall.errors:
        print_table(console, tables.overall(report.overall))
    print_table(console, tables.by_group(report.groups, short=True))
    lines(console, *words.verdict_lines(report.overall), *words.xmem_lines(report.overall))
    console.print()
    if report.paper.rows:
        _head(console, tables.paper(report.paper).title)
        print_table(console, tables.paper(report.paper))
    if words.other_methods(report):
        _head(console, tables.methods(report.grid).title)
        print_table(console, tables.methods(report.grid))
        lines(console, *map(words.method_line, words.other_methods(report)), *words.silent_lines(report))
        console.print()
    _head(console, words.far_line(report))
    for explained in report.explained:
        lines(console, *words.explained_lines(explained))
    if report.skipped:
        console.print()
        _head(console, "Skipped")
        lines(console, *map(words.skipped_line, report.skipped))
    if gates:
        console.print()
    for gate in gates:
        for line in words.gate_lines(gate):
            console.print(f"gate {line}", style="bold red" if gate.broken else "green", soft_wrap=True)


def print_table(console: Console, table: tables.Table) -> None:
    """Prints a table. If it has two or more text columns, the first column becomes headings between the rows."""
    folded = table.texts > 1
    heads = [head.replace(" ", "\n", 1) if len(head) > LONG else head for head in table.heads[folded:]]
    rich_table = layout.table(*heads, numbers=True)
    for column in rich_table.columns[:table.texts - folded]:
        column.justify = "left"
    last_heading = "all"
    for first, *cells in table.rows:
        if not folded:
            cells = [first, *cells]
        elif any(cells[:table.texts - 1]):
            if first != last_heading:
                rich_table.add_row(first, style="bold")
            cells[0], last_heading = "  " + cells[0], first
        else:
            cells[0] = first
        rich_table.add_row(*cells)
    console.print(rich_table)
    console.print()


def _head(console: Console, text: str) -> None:
    console.print(text, style="bold")


def lines(console: Console, *texts: str) -> None:
    """Prints sentences in lines of the console's width; spaces before one indent it."""
    for text in texts:
        indent = len(text) - len(text.lstrip())
        for line in layout.wrapped(console, text.strip(), indent=indent):
            console.print(line)
