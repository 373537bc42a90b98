"""Formats a regression report as Markdown, for a repository or a job summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.report.regression import tables, words
from predictor.common.safe_text import printable


def markdown(report: Report, gates: Sequence[Result] = ()) -> str:
    """The whole report, with every case."""
    parts = ["# Predicted against measured",
             *(_text(text) for text in (words.headline(report), words.summary(report), report.real_gpus) if text)]
    if gates:
        parts += ["## Gates", _list(line for gate in gates for line in words.gate_lines(gate))]
    if report.overall.errors:
        parts += ["## Errors", "Relative errors in percent: (predicted - measured) / measured.",
                  _table(tables.overall(report.overall))]
    parts += ["## By group", _table(tables.by_group(report.groups)),
              *(f"### {table.title}\n\n{_table(table)}" for table in
                (tables.errors(report.groups, counter) for counter in report.overall.errors)),
              "## Verdicts", _list((*words.verdict_lines(report.overall), *words.xmem_lines(report.overall))),
              _table(tables.verdicts(report.groups))]
    if report.paper.rows:
        parts += ["## The paper's grid", _table(tables.paper(report.paper))]
    if words.other_methods(report):
        parts += ["## Other methods", _table(tables.methods(report.grid)),
                  _list((*map(words.method_line, words.other_methods(report)), *words.silent_lines(report)))]
    parts += [f"## {words.far_line(report)}", "\n".join(
        f"- {_text(first)}\n" + "\n".join(f"  - {_text(line.strip())}" for line in rest)
        for first, *rest in map(words.explained_lines, report.explained))]
    parts += ["## Cases", _table(tables.cases(report))]
    if report.skipped:
        parts += ["## Skipped", _list(map(words.skipped_line, report.skipped))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _table(table: tables.Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(_text, cells)) + " |"

    rule = ["---" if place < table.texts else "---:" for place in range(len(table.heads))]
    return "\n".join([line(table.heads), "| " + " | ".join(rule) + " |", *map(line, table.rows)])


def _text(text: str) -> str:
    """Escapes text, so that no name becomes markup or a terminal control sequence."""
    text = printable(text.replace("\n", " "))
    for mark in "\\`*_{}[]<>|#":
        text = text.replace(mark, "\\" + mark)
    return text
