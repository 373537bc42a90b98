"""Prints the short answer of ``peakcast report``: at most 40 lines of 100 characters, unless ``--worst`` is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.regression.statistics import Group
from calibrate.report.regression import tables, words
from calibrate.report.regression.text import lines, print_table
from predictor.report.layout import counted, details_line, on_one_screen, print_wrapped

if TYPE_CHECKING:
    from rich.console import Console

SIZES = (5, 4, 3, 2, 1)
"""Groups, and broken limits of gates, that are printed: the most that fit."""
MOST_CASES = 3
"""Of the worst cases, and of what was skipped."""


def report(console: Console, report: Report, gates: Sequence[Result] = (), *, worst: int | None = None) -> None:
    """Prints errors, the worst groups, verdicts, the worst cases, gates, and where the rest is.

    Args:
        worst: number of cases that the user wants to see explained; None: the worst cases have only their errors.
    """
    def sized(console: Console, size: int) -> None:
        print_wrapped(console, words.headline(report), style="bold")
        print_wrapped(console, *filter(None, (words.summary(report), report.real_gpus)))
        console.print()
        if report.overall.errors:
            print_table(console, tables.overall(report.overall))
        groups = _worst_groups(report, size)
        if groups:
            print_table(console, _table([report.overall, *groups]))
        lines(console, *words.verdict_lines(report.overall))
        console.print()
        if words.other_methods(report):
            print_table(console, tables.methods(report.grid))
        _cases(console, report, min(size, MOST_CASES), worst)
        _gates(console, gates, size)
        print_wrapped(console, _rest(report, min(size, MOST_CASES)))

    on_one_screen(console, sized, SIZES)


def _worst_groups(report: Report, most: int) -> list[Group]:
    """The groups with the largest errors, those that are off at all."""
    groups = [group for group in report.groups if group.by != report.overall.by and _worst(group)]
    return sorted(groups, key=_worst, reverse=True)[:most]


def _worst(group: Group) -> float:
    return max((abs(errors.worst) for errors in group.errors.values()), default=0.0)


def _table(groups: Sequence[Group]) -> tables.Table:
    """The table of groups, with both names of a group in one cell."""
    table = tables.by_group(groups, short=True)
    rows = tuple((" ".join(filter(None, (by, value))), *cells) for by, value, *cells in table.rows)
    return replace(table, heads=("furthest off, %", *table.heads[2:]), rows=rows, texts=1)


def _cases(console: Console, report: Report, most: int, worst: int | None) -> None:
    """Prints the worst cases, each in full where the user asked for them, and the first of what was skipped."""
    print_wrapped(console, words.far_line(report), style="bold")
    for explained in report.explained[:most if worst is None else worst]:
        told = words.explained_lines(explained)
        lines(console, *(told[:1] if worst is None else told))
    lines(console, *(f"Skipped: {words.skipped_line(skipped)}" for skipped in report.skipped[:most]))
    console.print()


def _gates(console: Console, gates: Sequence[Result], most: int) -> None:
    """Prints the broken limits, then the gates that hold in one sentence."""
    broken = [line for gate in gates for line in gate.broken]
    print_wrapped(console, *(f"gate {line}" for line in broken[:most]), style="bold red")
    if broken[most:]:
        print_wrapped(console, f"{counted(len(broken) - most, 'limit')} of gates are broken: see --details.",
                      style="bold red")
    held = [f"{gate.gate.name} ({words.count(gate.cases, 'case')})" for gate in gates if not gate.broken]
    if held:
        print_wrapped(console, f"Gates that hold: {', '.join(held)}.", style="green")
    if gates:
        console.print()


def _rest(report: Report, most: int) -> str:
    """A sentence that says what ``--details`` has beside the short answer."""
    skipped = len(report.skipped) - most
    return details_line("all groups", "the worst cases with their causes", "xMem's figures",
                        "the paper's jobs" if report.paper.rows else "",
                        "what each method counts" if words.other_methods(report) else "",
                        f"{skipped} more that were skipped" if skipped > 0 else "")
