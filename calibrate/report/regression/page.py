"""Formats a regression report as one HTML file, with styles and figures inside. The page loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.report.regression import figures, tables, words
from calibrate.report.regression.breakdown import breakdown
from calibrate.report.regression.chart import WIDTH
from calibrate.report.regression.paper import paper
from predictor.common.errors import InputError
from predictor.common.installing import pip_install
from predictor.common.safe_text import markup
from predictor.events.events import Factor
from predictor.report import svg_elements
from predictor.report.styles import styles
from predictor.report.svg import COLOURS
from predictor.version import VERSION

if TYPE_CHECKING:
    import jinja2

HERE = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy: the page may use only its own styles. Browsers refuse everything else."""
MOST_OPEN = 10
"""Number of explained cases that show at once; the others open on demand."""


@dataclass(frozen=True)
class Part:
    """A part of a section. ``kind`` says what it holds, and how ``page.html`` shows it."""

    kind: str
    content: Any


@dataclass(frozen=True)
class Section:
    """A section of the page; ``name`` is its anchor."""

    name: str
    title: str
    parts: tuple[Part, ...]


def page(report: Report, gates: Sequence[Result] = (), *, command: str = "", profile: str | None = None) -> str:
    """The whole document. The same report gives the same bytes.

    Raises:
        InputError: jinja2 is not installed.
    """
    return _template().render(
        policy=POLICY, style=_style(), drawing=_drawing, most_open=MOST_OPEN, version=VERSION, command=command,
        profile=profile, headline=f"{words.headline(report)} {words.summary(report)}", real_gpus=report.real_gpus,
        gates=[(bool(gate.broken), line) for gate in gates for line in words.gate_lines(gate)],
        sections=list(_sections(report)))


def check() -> None:
    """Checks that pages can be made here.

    Raises:
        InputError: jinja2 is not installed.
    """
    _template()


@lru_cache
def _template() -> jinja2.Template:
    """The template. What it prints is escaped as :func:`markup` does, unless it says ``safe``."""
    try:
        import jinja2
    except ImportError:
        raise InputError("an HTML report needs jinja2, which is not there: "
                         f"{pip_install('peakcast[report]')}") from None
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True, finalize=_escaped,
                                     keep_trailing_newline=True)
    return environment.from_string((HERE / "page.html").read_text(encoding="utf-8"))


def _escaped(value: Any) -> Any:
    """Text from outside in visible, harmless characters; what is marked as safe stays."""
    import markupsafe

    return markupsafe.Markup(markup(value)) if type(value) is str else value


def _sections(report: Report) -> Iterator[Section]:
    """What the page shows of a report: sections without data are left out, and so are figures without data."""
    if report.overall.errors:
        yield _section("errors", "Errors", ("text", "Signed errors are (predicted − measured) ÷ measured, in percent: "
                                            "below zero, too low."),
                       ("table", tables.overall(report.overall)), ("figure", figures.scatter(report)))
    by_counter = (tables.errors(report.groups, counter) for counter in report.overall.errors)
    yield _section("groups", "By group", ("figure", figures.errors(report)), ("table", tables.by_group(report.groups)),
                   *(("folded", table) for table in by_counter))
    outcomes = (*words.verdict_lines(report.overall), *words.xmem_lines(report.overall))
    yield _section("verdicts", "Verdicts", *(("text", line) for line in outcomes),
                   ("folded", tables.verdicts(report.groups)))
    if report.paper.rows:
        yield _section("grid", "The paper's grid",
                       ("text", "A row a job: measured and predicted are those of its highest rank."),
                       ("figure", paper(report)), ("table", tables.paper(report.paper)))
    if words.other_methods(report):
        lines = [*map(words.method_line, words.other_methods(report)), *words.silent_lines(report)]
        yield _section("others", "Other methods", ("figure", figures.methods(report)),
                       ("table", tables.methods(report.grid)), ("list", lines))
    explained = [[line.strip() for line in words.explained_lines(case)] for case in report.explained]
    yield _section("worst", words.far_line(report), ("figure", breakdown(report)), ("cases", explained))
    yield _section("cases", "Every case", ("folded", tables.cases(report)))
    if report.skipped:
        yield _section("skipped", "Skipped", ("list", list(map(words.skipped_line, report.skipped))))


def _drawing(figure: figures.Figure) -> str:
    """The SVG of a figure, in the colours of the page's styles."""
    return svg_elements.part_of_page(WIDTH, figure.height, figure.body, title=figure.title,
                                     description=figure.description, name=f"figure-{figure.name}")


def _section(name: str, title: str, *parts: tuple[str, Any]) -> Section:
    return Section(name, title, tuple(Part(kind, content) for kind, content in parts if content is not None))


def _style() -> str:
    factors = "".join(f".f-{factor.value} {{ fill: {colour}; }}\n" for factor, colour in COLOURS.items()
                      if factor is not Factor.ALLOCATOR)
    return f"{styles()}{(HERE / 'page.css').read_text(encoding='utf-8')}{factors}.f-allocator {{ fill: var(--ink); }}"
