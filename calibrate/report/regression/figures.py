"""The figures of a regression report; each is None where the report has nothing for it."""

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
from predictor.report.units import GIB, gib, size_text

SCALARS_BYTES = 12
"""What predictions are known to miss on the emulated GPU: three scalars of 4 bytes, requested (README)."""
LEAST_ERROR = 1e-10
"""Errors below a ten-thousandth of a millionth are not told apart."""
ROW = 24
"""Units of a group."""


@dataclass(frozen=True)
class Figure:
    """One figure; ``body`` are the elements of an SVG of ``chart.WIDTH`` by ``height``.

    Attributes:
        name: of the anchor.
        title: what it shows; description: what is to be seen, for those who cannot look.
        caption: below it.
    """

    name: str
    title: str
    description: str
    caption: str
    height: float
    body: tuple[str, ...]


def scatter(made: Report) -> Figure | None:
    """Predicted against measured allocated peaks."""
    found = [one for one in made.comparisons if one.error("allocated") is not None]
    if not found:
        return None
    peaks = [(one, one.peaks["allocated"].measured_bytes / GIB, one.peaks["allocated"].predicted_bytes / GIB)
             for one in found]
    values = [size for _, *sizes in peaks for size in sizes]
    low, high = min(values) / 1.6, max(values) * 1.6
    across, up = Scale(low, high, 64, 744, math.log10), Scale(low, high, 400, 56, math.log10)
    ticks = chart.decades(low, high)
    recipes = sorted({one.case.workload.recipe for one in found})
    points = [chart.mark(across(measured), up(predicted), recipes.index(one.case.workload.recipe),
                         f"{one.case.name}: measured {measured:.2f} GiB, {percent(one.error('allocated'))} %")
              for one, measured, predicted in peaks]
    measured = [one.peaks["allocated"].measured_bytes for one in found]
    body = [*_recipes(recipes, 64), chart.text(8, 44, "predicted, GiB", "label"),
            *chart.upright(up, ticks, 64, 744, "{:g}".format), *chart.level(across, ticks, 56, 400, "{:g}".format),
            chart.line(across(low), up(low), across(high), up(high), "axis"), *points,
            chart.text(404, 436, "measured, GiB", "label", "middle")]
    return Figure("predicted-against-measured", "Predicted against measured",
                  f"{len(found)} points, one for each case, from {gib(min(measured))} to {gib(max(measured))} GiB; the "
                  f"furthest is {percent(made.overall.errors['allocated'].worst)} % off the line of equality.",
                  "Allocated peak of each case, both axes logarithmic; on the line both are equal.", 446, tuple(body))


def errors(made: Report) -> Figure | None:
    """Signed errors of each case, by group."""
    counters = list(made.overall.errors)
    if not counters:
        return None
    groups = _groups(made)
    sizes = [abs(error) for one in made.comparisons for counter in counters if (error := one.error(counter))]
    most = max(1e-6, 2 * max(sizes, default=0))
    least = max(LEAST_ERROR, min(most / 100, min(sizes, default=0) / 2))
    top, bottom = 60, 60 + ROW * len(groups)
    scale = Scale(-most, most, 188, 744, chart.symlog(least))
    smallest = min(one.peaks["requested"].measured_bytes or math.inf for one in made.comparisons)
    body = chart.legend(188, 18, [(chart.mark(0, 0, place), counter) for place, counter in enumerate(counters)])
    note = ""
    if least < SCALARS_BYTES / smallest:
        ends = [scale(sign * SCALARS_BYTES / smallest) for sign in (-1, 1)]
        body.append(chart.box(ends[0], top, ends[1] - ends[0], bottom - top, "band"))
        note = f" The band is {SCALARS_BYTES} bytes of the smallest peak here ({size_text(smallest)})."
        body.append(chart.text(scale(0), top - 8, f"±{SCALARS_BYTES} bytes of {size_text(smallest)}", "tick", "middle"))
    body += chart.level(scale, _ticks(most, least), top, bottom, _part)
    before = ""
    for place, (by, value, members) in enumerate(groups):
        y = top + ROW * place
        if by != before:
            body += [chart.line(8, y, 744, y, "rule"), chart.text(8, y + 16, by, "label")]
            before = by
        body.append(chart.text(180, y + 16, chart.fitting(value, 120), "", "end"))
        for lane, counter in enumerate(counters):
            drawn = sorted({scale(one.error(counter)) for one in members if one.error(counter) is not None})
            body += [chart.mark(x, y + ROW * (lane + 1) / (len(counters) + 1), lane, radius=3) for x in drawn]
    body.append(chart.text(466, bottom + 36, "signed error: too low to the left, too high to the right", "label",
                           "middle"))
    worst = "; ".join(f"{counter} {percent(made.overall.errors[counter].worst)} %" for counter in counters)
    return Figure("errors-by-group", "Signed errors by group",
                  f"A row for each group, a mark for each case and counter. Furthest from zero: {worst}.",
                  "Each case's signed error on a scale that is logarithmic on both sides of zero (ppm: millionths); "
                  f"cases at one place are one mark.{note}", bottom + 48, tuple(body))


class _Group(NamedTuple):
    by: str
    value: str
    members: list[Comparison]


def _groups(made: Report) -> list[_Group]:
    """All cases, then the groups of each label that tells some apart."""
    known = [group for group in made.groups[1:] if group.errors]
    often = Counter(group.by for group in known)
    return [_Group("", "all", list(made.comparisons)), *(
        _Group(group.by.replace("data_parallel_size", "degree").replace("_", " "), str(group.value),
               [one for one in made.comparisons if one.case.labels[group.by] == group.value])
        for group in known if often[group.by] > 1)]


def _ticks(most: float, least: float) -> list[float]:
    """0 and powers of ten on both sides, at most four, so that their values do not touch."""
    step = math.ceil(math.log10(most / least) / 4)
    powers = range(math.floor(math.log10(most / 2)), math.ceil(math.log10(least)), -step)
    return sorted({0.0, *(sign * 10.0**power for power in powers for sign in (-1, 1))})


def methods(made: Report) -> Figure | None:
    """What each method says for what was measured, case by case."""
    if not made.grid.methods[1:]:
        return None
    recipes = sorted({row.case.workload.recipe for row in made.grid.rows})
    errors = made.grid.errors
    ratios = [1 + row.error(method) for row in made.grid.rows for method in made.grid.methods
              if row.error(method) is not None]
    low, high = min(0.5, *ratios) / 1.1, max(2, *ratios) * 1.1
    bottom = 44 + 52 * len(errors)
    scale = Scale(low, high, 112, 660, math.log10)
    body = chart.level(scale, chart.decades(low, high), 36, bottom, "×{:g}".format)
    body += [chart.line(scale(1), 36, scale(1), bottom, "axis"), *_recipes(recipes, 112),
             chart.text(752, 18, "MAPE", "label", "end")]
    for place, (method, one) in enumerate(errors.items()):
        y = 64 + 52 * place
        body += [chart.text(104, y + 4, method_name(method), "label" if method == OURS else "", "end"),
                 chart.text(752, y + 4, f"{percent(one.mape)} %" if one else "no case", "", "end")]
        points = sorted({(scale(1 + row.error(method)), recipes.index(row.case.workload.recipe))
                         for row in made.grid.rows if row.error(method) is not None})
        body += [chart.mark(x, y + 9 * (series - (len(recipes) - 1) / 2), series, radius=3.5) for x, series in points]
    body.append(chart.text(386, bottom + 36, "what the method says ÷ what was measured", "label", "middle"))
    said = "; ".join(f"{method_name(method)} {percent(one.mape)} %" for method, one in errors.items() if one)
    return Figure("methods", "Every method beside ours", f"A row for each method, a mark for each case. MAPE: {said}.",
                  "Estimates of the allocated peak as a multiple of the measured one, logarithmic; cases at one place "
                  "are one mark.", bottom + 48, tuple(body))


def _recipes(recipes: Sequence[str], x: float) -> list[str]:
    return chart.legend(x, 18, [(chart.mark(0, 0, place), recipe) for place, recipe in enumerate(recipes)])


def _part(error: float) -> str:
    """``0.001 ppm``, ``0.1 %``: the value of a tick."""
    if not error:
        return "0"
    size = abs(error)
    return ("−" if error < 0 else "") + (f"{100 * size:g} %" if size >= 5e-4 else f"{1e6 * size:g} ppm")
