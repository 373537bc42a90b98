"""A regression report as Markdown, for a repository or a job summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.report.regression import tables, words
from predictor.common.safe_text import printable


def markdown(made: Report, gates: Sequence[Result] = ()) -> str:
    """All of it, every case included."""
    parts = ["# Predicted against measured", _text(words.headline(made)), _text(words.summary(made))]
    if gates:
        parts += ["## Gates", _list(line for gate in gates for line in words.gate_lines(gate))]
    if made.overall.errors:
        parts += ["## Errors", "Relative errors in percent: (predicted - measured) / measured.",
                  _table(tables.overall(made.overall))]
    parts += ["## By group", _table(tables.by_group(made.groups)),
              *(f"### {table.title}\n\n{_table(table)}" for table in
                (tables.errors(made.groups, counter) for counter in made.overall.errors)),
              "## Verdicts", _list((*words.verdict_lines(made.overall), *words.xmem_lines(made.overall))),
              _table(tables.verdicts(made.groups))]
    if made.paper.rows:
        parts += ["## The paper's grid", _table(tables.paper(made.paper))]
    if words.asked(made):
        parts += ["## Other methods", _table(tables.methods(made.grid)),
                  _list((*map(words.method_line, words.asked(made)), *words.silent_lines(made)))]
    parts += [f"## {words.far_line(made)}", "\n".join(
        f"- {_text(first)}\n" + "\n".join(f"  - {_text(line.strip())}" for line in rest)
        for first, *rest in map(words.explained_lines, made.explained))]
    parts += ["## Cases", _table(tables.cases(made))]
    if made.skipped:
        parts += ["## Skipped", _list(map(words.skipped_line, made.skipped))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _table(table: tables.Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(_text, cells)) + " |"

    rule = ["---" if place < table.texts else "---:" for place in range(len(table.heads))]
    return "\n".join([line(table.heads), "| " + " | ".join(rule) + " |", *map(line, table.rows)])


def _text(text: str) -> str:
    """Nothing in a name can become markup, nor steer a terminal that shows the file."""
    text = printable(text.replace("\n", " "))
    for mark in "\\`*_{}[]<>|#":
        text = text.replace(mark, "\\" + mark)
    return text
