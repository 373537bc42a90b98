"""Redraws the two figures of arXiv 2512.07853: peak against data-parallel degree, one panel for each shape."""

from __future__ import annotations

from collections.abc import Mapping

from calibrate.regression.baselines.grid import OURS, Row
from calibrate.regression.report import Report
from calibrate.report.regression import chart
from calibrate.report.regression.chart import Scale
from calibrate.report.regression.figures import Figure
from calibrate.report.regression.words import method_name, percent
from predictor.report.units import GIB, size_text

EQUATION = "equation_1"
TOP, BOTTOM, PANEL = 62, 344, 372


def paper(report: Report) -> Figure | None:
    """Draws measured and predicted peaks on the paper's axes, and the paper's Eq. 1 if it was estimated."""
    chosen = _highest(report)
    if not chosen:
        return None
    methods = [method for method in report.paper.methods if method in (OURS, EQUATION)]
    recipes = sorted({recipe for recipe, *_ in chosen})
    shapes = sorted({shape for _, shape, _ in chosen}, key=lambda shape: shape[1])
    degrees = sorted({degree for *_, degree in chosen})
    totals = {row.case.gpu_bytes for row in chosen.values()}
    gpu_bytes = totals.pop() if len(totals) == 1 else None
    high = max(max(row.measured_bytes, *(row.bytes(method) or 0 for method in methods)) for row in chosen.values())
    up = Scale(0, 1.06 * high / GIB, BOTTOM, TOP)
    body = [chart.text(8, TOP - 12, "GiB", "label")]
    for place, shape in enumerate(shapes):
        left = 44 + PANEL * place
        across = Scale(0, len(degrees) - 1 or 1, left + 24, left + PANEL - 60)
        right = left + PANEL - 36
        body += [*chart.upright(up, chart.even(1.06 * high / GIB), left, right, "{:g}".format),
                 chart.text(left, TOP - 12, f"batch {shape[0]} × {shape[1]:,} tokens", "label")]
        if gpu_bytes and gpu_bytes / GIB <= up.high:
            y = up(gpu_bytes / GIB)
            words = f"one GPU has {size_text(gpu_bytes)}"
            body += [chart.line(left, y, right, y, "limit"), chart.text(right, y - 4, words, "tick", "end")]
        body += [chart.text(across(index), BOTTOM + 18, str(degree), "tick", "middle")
                 for index, degree in enumerate(degrees)]
        body.append(chart.text((left + right) / 2, BOTTOM + 38, "data-parallel degree", "label", "middle"))
        for series, recipe in enumerate(recipes):
            points = [(across(index), chosen[recipe, shape, degree]) for index, degree in enumerate(degrees)
                      if (recipe, shape, degree) in chosen]
            body += _lines(points, up, series, methods)
    items = [(chart.mark(0, 0, series), f"{recipe}, measured") for series, recipe in enumerate(recipes)]
    items.append((chart.mark(0, 0, 0, radius=7, style="ring"), OURS))
    if EQUATION in methods:
        items.append((chart.path([(-8, 0), (8, 0)], "line dashed s0"), method_name(EQUATION)))
    errors = {method: errors_of for method, errors_of in report.paper.errors.items() if method in methods and errors_of}
    mapes = ", ".join(f"{method_name(method)} {percent(errors_of.mape)} %" for method, errors_of in errors.items())
    return Figure(
        "paper", "The paper's two figures, with our numbers",
        f"Peak against data-parallel degree for {len(shapes)} shapes and {len(recipes)} recipes. MAPE: {mapes}.",
        "The axes of both evaluation figures of arXiv 2512.07853 (LLaVA-1.5-7B, ZeRO-2): allocated peak against "
        "degree, one panel a shape. Everything drawn is ours: measured peaks of these records, peakcast's predictions "
        "(rings around them) and, if asked for, the paper's equation as we compute it; at each point the highest of "
        "ranks and bucket sizes. The paper's own bars come without numbers and without its recipe, so they are not "
        "redrawn; it reports a MAPE of 13 % and 8.7 %.",
        BOTTOM + 52, (*body, *chart.legend(44, 20, items)))


def _highest(report: Report) -> dict[tuple[str, tuple[int, int], int], Row]:
    """Recipe, shape and degree -> of all bucket sizes, the job with the highest measured peak."""
    highest: dict[tuple[str, tuple[int, int], int], Row] = {}
    for row in report.paper.rows:
        workload = row.case.workload
        shape = (workload.per_device_train_batch_size, workload.sequence_length or 0)
        key = (workload.recipe, shape, workload.data_parallel_size)
        if key not in highest or row.measured_bytes > highest[key].measured_bytes:
            highest[key] = row
    return highest


def _lines(points: list[tuple[float, Row]], up: Scale, series: int, methods: list[str]) -> list[str]:
    """Measured peaks as marks on a line, predictions as rings, and Eq. 1 as a dashed line."""
    parts = [chart.path([(x, up(row.measured_bytes / GIB)) for x, row in points], f"line s{series}")]
    if EQUATION in methods:
        known = [(x, up(size / GIB)) for x, row in points if (size := row.bytes(EQUATION)) is not None]
        parts += [chart.path(known, f"line dashed s{series}")] if known else []
    for x, row in points:
        sizes: Mapping[str, int | None] = {method: row.bytes(method) for method in methods}
        title = "; ".join((f"{row.case.name}: measured {size_text(row.measured_bytes)}",
                           *(f"{method_name(method)} {size_text(size)}" for method, size in sizes.items() if size)))
        parts += [chart.mark(x, up(row.measured_bytes / GIB), series, title),
                  chart.mark(x, up(row.predicted_bytes / GIB), series, radius=7, style="ring")]
    return parts
