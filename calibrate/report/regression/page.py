"""Formats a regression report as one HTML file, with styles and figures inside. The page loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.report.regression import figures, tables, words
from calibrate.report.regression.breakdown import breakdown
from calibrate.report.regression.chart import WIDTH
from calibrate.report.regression.figures import Figure
from calibrate.report.regression.paper import paper
from calibrate.report.regression.tables import Table
from predictor.common.safe_text import markup
from predictor.events.events import Factor
from predictor.report.styles import styles
from predictor.report.svg import COLOURS
from predictor.version import VERSION

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy: the page may use only its own styles. Browsers refuse everything else."""

MOST_OPEN = 10
"""Number of explained cases that show at once; the others open on demand."""


def page(report: Report, gates: Sequence[Result] = (), *, command: str = "", profile: str | None = None) -> str:
    """The whole document. The same report gives the same bytes."""
    sections = []
    if report.overall.errors:
        sections.append(("errors", "Errors", [
            "<p>Signed errors are (predicted − measured) ÷ measured, in percent: below zero, too low.</p>",
            _table(tables.overall(report.overall)), _figure(figures.scatter(report))]))
    sections.append(("groups", "By group", [_figure(figures.errors(report)), _table(tables.by_group(report.groups)),
                                            *map(_folded, (tables.errors(report.groups, counter)
                                                           for counter in report.overall.errors))]))
    outcomes = (*words.verdict_lines(report.overall), *words.xmem_lines(report.overall))
    sections.append(("verdicts", "Verdicts", [
        *(f"<p>{markup(line)}</p>" for line in outcomes),
        _folded(tables.verdicts(report.groups))]))
    if report.paper.rows:
        sections.append(("grid", "The paper's grid", [
            "<p>A row a job: measured and predicted are those of its highest rank.</p>",
            _figure(paper(report)), _table(tables.paper(report.paper))]))
    if words.other_methods(report):
        lines = (*map(words.method_line, words.other_methods(report)), *words.silent_lines(report))
        sections.append(("others", "Other methods", [
            _figure(figures.methods(report)), _table(tables.methods(report.grid)), _list(lines)]))
    explained = [_explained(words.explained_lines(explained_case)) for explained_case in report.explained]
    sections.append(("worst", words.far_line(report), [
        _figure(breakdown(report)), *explained[:MOST_OPEN], *_more(explained[MOST_OPEN:])]))
    sections.append(("cases", "Every case", [_folded(tables.cases(report))]))
    if report.skipped:
        sections.append(("skipped", "Skipped", [_list(map(words.skipped_line, report.skipped))]))
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', *_head(), "<body>", "<header>",
                      *_top(report, gates, command, profile), _contents(sections), "</header>", "<main>",
                      *(part for section in sections for part in _section(*section)), "</main>", "</body>", "</html>"
                      ]) + "\n"


def _head() -> list[str]:
    style = styles() + (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    factors = "".join(f".f-{factor.value} {{ fill: {colour}; }}\n" for factor, colour in COLOURS.items()
                      if factor is not Factor.ALLOCATOR)
    return ["<head>", '<meta charset="utf-8">', f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<title>peakcast: predicted against measured</title>", '<link rel="icon" href="data:,">',
            f"<style>\n{style}{factors}.f-allocator {{ fill: var(--ink); }}\n</style>", "</head>"]


def _top(report: Report, gates: Sequence[Result], command: str, profile: str | None) -> list[str]:
    """The top of the page: headline, summary, gates and provenance."""
    parts = ["<h1>Predicted against measured GPU memory</h1>",
             f'<p class="lead">{markup(words.headline(report))} {markup(words.summary(report))}</p>']
    parts += [f"<p>{markup(report.real_gpus)}</p>"] if report.real_gpus else []
    if gates:
        parts += ["<ul>", *(f'<li class="{"bad" if gate.broken else "good"}">Gate {markup(line)}</li>'
                            for gate in gates for line in words.gate_lines(gate)), "</ul>"]
    provenance = [f"peakcast {VERSION}", command and f"<code>{markup(command)}</code>",
            profile and f"profile {markup(profile)}"]
    return [*parts, f'<p class="from">{" · ".join(filter(None, provenance))}</p>']


def _contents(sections: Iterable[tuple[str, str, list[str]]]) -> str:
    links = " ".join(f'<a href="#{name}">{markup(title)}</a>' for name, title, _ in sections)
    return f'<nav aria-label="Contents">{links}</nav>'


def _section(name: str, title: str, parts: Iterable[str]) -> list[str]:
    return [f'<section id="{name}">', f"<h2>{markup(title)}</h2>", *(part for part in parts if part), "</section>"]


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return ""
    name = f"figure-{figure.name}"
    return "\n".join([
        f'<figure id="{name}">', f'<svg viewBox="0 0 {WIDTH} {figure.height:g}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">', f'<title id="{name}-title">{markup(figure.title)}</title>',
        f'<desc id="{name}-desc">{markup(figure.description)}</desc>', *figure.body, "</svg>",
        f"<figcaption><strong>{markup(figure.title)}.</strong> {markup(figure.caption)}</figcaption>", "</figure>"])


def _table(table: Table) -> str:
    def cell(place: int, words: str, tag: str, scope: str = "") -> str:
        style = ' class="text"' if place < table.texts else ""
        return f"<{tag}{scope}{style}>{markup(words)}</{tag}>"

    rows = []
    for number, row in enumerate(table.rows, 1):
        style = ' class="last"' if table.last and number == len(table.rows) else ""
        rows.append(f"<tr{style}>" + cell(0, row[0], "th", ' scope="row"')
                    + "".join(cell(place, words, "td") for place, words in enumerate(row[1:], 1)) + "</tr>")
    heads = "".join(cell(place, words, "th", ' scope="col"') for place, words in enumerate(table.heads))
    return "\n".join(['<div class="wide">', f"<table><caption>{markup(table.title)}</caption>",
                      f"<thead><tr>{heads}</tr></thead>", "<tbody>", *rows, "</tbody></table>", "</div>"])


def _list(lines: Iterable[str]) -> str:
    return "\n".join(["<ul>", *(f"<li>{markup(line)}</li>" for line in lines), "</ul>"])


def _explained(lines: Sequence[str]) -> str:
    """An explained case: its name, then the explanation, with commands as code."""
    first, *rest = (line.strip() for line in lines)
    items = [f"<code>{markup(line)}</code>" if line.startswith("peakcast ") else markup(line) for line in rest]
    return f"<p><strong>{markup(first)}</strong></p>\n<ul>" + "".join(f"<li>{line}</li>" for line in items) + "</ul>"


def _more(parts: Sequence[str]) -> list[str]:
    return [f"<details><summary>{len(parts)} more</summary>", *parts, "</details>"] if parts else []


def _folded(table: Table) -> str:
    """A table that is folded and opens on demand."""
    return f"<details><summary>{markup(table.title)} ({len(table.rows)} rows)</summary>\n{_table(table)}</details>"
