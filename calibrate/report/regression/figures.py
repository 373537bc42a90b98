"""The figures of a regression report. Each function returns None if the report has no data for its figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calibrate.regression.baselines.grid import OURS
from calibrate.regression.compare import Comparison
from calibrate.regression.report import Report
from calibrate.report.regression import chart
from calibrate.report.regression.chart import Scale
from calibrate.report.regression.words import method_name, percent
from predictor.report.units import GIB, gib

LEAST_ERROR = 1e-10
"""Smallest relative error that is drawn apart from 0."""
ROW = 24
"""Height of a group in SVG units."""


@dataclass(frozen=True)
class Figure:
    """One figure; ``body`` are the elements of an SVG of ``chart.WIDTH`` by ``height``.

    Attributes:
        name: name of the anchor.
        title: title of the figure.
        description: its content in words, for screen readers.
        caption: text below it.
    """

    name: str
    title: str
    description: str
    caption: str
    height: float
    body: tuple[str, ...]


def scatter(report: Report) -> Figure | None:
    """Scatter plot of predicted against measured allocated peaks."""
    known = [comparison for comparison in report.comparisons if comparison.error("allocated") is not None]
    if not known:
        return None
    bytes_of = [comparison.peaks["allocated"].both_bytes for comparison in known]
    peaks = [(comparison, measured / GIB, predicted / GIB)
             for comparison, (measured, predicted) in zip(known, bytes_of)]
    values = [size for _, *sizes in peaks for size in sizes]
    low, high = min(values) / 1.6, max(values) * 1.6
    across, up = Scale(low, high, 64, 744, math.log10), Scale(low, high, 400, 56, math.log10)
    ticks = chart.decades(low, high)
    recipes = sorted({comparison.case.workload.recipe for comparison in known})
    points = [chart.mark(across(measured), up(predicted), recipes.index(comparison.case.workload.recipe),
                         f"{comparison.case.name}: measured {measured:.2f} GiB, "
                         f"{percent(comparison.error('allocated'))} %")
              for comparison, measured, predicted in peaks]
    sizes = [measured for measured, _ in bytes_of]
    body = [*_recipes(recipes, 64), chart.text(8, 44, "predicted, GiB", "label"),
            *chart.upright(up, ticks, 64, 744, "{:g}".format), *chart.level(across, ticks, 56, 400, "{:g}".format),
            chart.line(across(low), up(low), across(high), up(high), "axis"), *points,
            chart.text(404, 436, "measured, GiB", "label", "middle")]
    return Figure("predicted-against-measured", "Predicted against measured",
                  f"{len(known)} points, one for each case, from {gib(min(sizes))} to {gib(max(sizes))} GiB; the "
                  f"furthest is {percent(report.overall.errors['allocated'].worst)} % off the line of equality.",
                  "Allocated peak of each case, both axes logarithmic; on the line both are equal.", 446, tuple(body))


def errors(report: Report) -> Figure | None:
    """Signed errors of each case and counter, by group."""
    counters = list(report.overall.errors)
    if not counters:
        return None
    groups = _groups(report)
    sizes = [abs(error) for comparison in report.comparisons for counter in counters
             if (error := comparison.error(counter))]
    most = max(1e-6, 2 * max(sizes, default=0))
    least = max(LEAST_ERROR, min(most / 100, min(sizes, default=0) / 2))
    top, bottom = 60, 60 + ROW * len(groups)
    scale = Scale(-most, most, 188, 744, chart.symlog(least))
    body = chart.legend(188, 18, [(chart.mark(0, 0, place), counter) for place, counter in enumerate(counters)])
    body += chart.level(scale, _ticks(most, least), top, bottom, _part)
    last_label = ""
    for place, (by, value, members) in enumerate(groups):
        y = top + ROW * place
        if by != last_label:
            body += [chart.line(8, y, 744, y, "rule"), chart.text(8, y + 16, by, "label")]
            last_label = by
        body.append(chart.text(180, y + 16, chart.fitting(value, 120), "", "end"))
        for lane, counter in enumerate(counters):
            drawn = sorted({scale(error) for comparison in members if (error := comparison.error(counter)) is not None})
            body += [chart.mark(x, y + ROW * (lane + 1) / (len(counters) + 1), lane, radius=3) for x in drawn]
    body.append(chart.text(466, bottom + 36, "signed error: too low to the left, too high to the right", "label",
                           "middle"))
    worst = "; ".join(f"{counter} {percent(report.overall.errors[counter].worst)} %" for counter in counters)
    return Figure("errors-by-group", "Signed errors by group",
                  f"A row for each group, a mark for each case and counter. Furthest from zero: {worst}.",
                  "Each case's signed error on a scale that is logarithmic on both sides of zero (ppm: millionths); "
                  "cases at one place are one mark.", bottom + 48, tuple(body))


class _Group(NamedTuple):
    by: str
    value: str
    members: list[Comparison]


def _groups(report: Report) -> list[_Group]:
    """All cases, then the groups of each label with more than one value."""
    known = [group for group in report.groups[1:] if group.errors]
    values = Counter(group.by for group in known)
    return [_Group("", "all", list(report.comparisons)), *(
        _Group(group.by.replace("data_parallel_size", "degree").replace("_", " "), str(group.value),
               [comparison for comparison in report.comparisons if comparison.case.labels[group.by] == group.value])
        for group in known if values[group.by] > 1)]


def _ticks(most: float, least: float) -> list[float]:
    """0 and powers of ten on both sides, at most four, so that their values do not touch."""
    step = math.ceil(math.log10(most / least) / 4)
    powers = range(math.floor(math.log10(most / 2)), math.ceil(math.log10(least)), -step)
    return sorted({0.0, *(sign * 10.0**power for power in powers for sign in (-1, 1))})


def methods(report: Report) -> Figure | None:
    """Estimates of every method as multiples of the measured peak, case by case."""
    if not report.grid.methods[1:]:
        return None
    recipes = sorted({row.case.workload.recipe for row in report.grid.rows})
    errors = report.grid.errors
    ratios = [1 + error for row in report.grid.rows for method in report.grid.methods
              if (error := row.error(method)) is not None]
    low, high = min(0.5, *ratios) / 1.1, max(2, *ratios) * 1.1
    bottom = 44 + 52 * len(errors)
    scale = Scale(low, high, 112, 660, math.log10)
    body = chart.level(scale, chart.decades(low, high), 36, bottom, "×{:g}".format)
    body += [chart.line(scale(1), 36, scale(1), bottom, "axis"), *_recipes(recipes, 112),
             chart.text(752, 18, "MAPE", "label", "end")]
    for place, (method, errors_of) in enumerate(errors.items()):
        y = 64 + 52 * place
        body += [chart.text(104, y + 4, method_name(method), "label" if method == OURS else "", "end"),
                 chart.text(752, y + 4, f"{percent(errors_of.mape)} %" if errors_of else "no case", "", "end")]
        points = sorted({(scale(1 + error), recipes.index(row.case.workload.recipe))
                         for row in report.grid.rows if (error := row.error(method)) is not None})
        body += [chart.mark(x, y + 9 * (series - (len(recipes) - 1) / 2), series, radius=3.5) for x, series in points]
    body.append(chart.text(386, bottom + 36, "what the method says ÷ what was measured", "label", "middle"))
    mapes = "; ".join(f"{method_name(method)} {percent(errors_of.mape)} %"
                      for method, errors_of in errors.items() if errors_of)
    return Figure("methods", "Every method beside ours", f"A row for each method, a mark for each case. MAPE: {mapes}.",
                  "Estimates of the allocated peak as a multiple of the measured one, logarithmic; cases at one place "
                  "are one mark.", bottom + 48, tuple(body))


def _recipes(recipes: Sequence[str], x: float) -> list[str]:
    return chart.legend(x, 18, [(chart.mark(0, 0, place), recipe) for place, recipe in enumerate(recipes)])


def _part(error: float) -> str:
    """The value of a tick as text, such as ``0.001 ppm`` or ``0.1 %``."""
    if not error:
        return "0"
    size = abs(error)
    return ("−" if error < 0 else "") + (f"{100 * size:g} %" if size >= 5e-4 else f"{1e6 * size:g} ppm")
