"""Draws the steps of a training as one SVG file: reserved and allocated bytes, the limit, and where it fails."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.answer.prediction import Prediction
from predictor.report import svg_elements as svg
from predictor.report import verdict
from predictor.report.course import headline, of, thinned
from predictor.report.units import size_text

WIDTH, HEIGHT = 1000, 480
LEFT, RIGHT, TOP, BOTTOM = 64, 984, 64, 420
COLOURS = {"reserved": "#333333", "allocated": "#56b4e9"}


def plot(prediction: Prediction) -> str:
    """An SVG document: reserved and allocated bytes over the steps, what PyTorch may reserve, and the failure."""
    course = of(prediction)
    reserved, allocated = (thinned(course.columns[name], RIGHT - LEFT)
                           for name in ("peak_reserved_bytes", "peak_allocated_bytes"))
    limit = course.limit_bytes
    scale = 1.05 * max(*reserved, limit if limit and limit < 2 * max(reserved) else 0)

    def y(size: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * size / scale, 1)

    def along(values: Sequence[int]) -> list[tuple[float, float]]:
        last = max(len(values) - 1, 1)
        return [(round(LEFT + (RIGHT - LEFT) * index / last, 1), y(size)) for index, size in enumerate(values)]

    line = along(allocated)
    area = svg.through([(LEFT, BOTTOM), *line, (line[-1][0], BOTTOM)])
    parts = [svg.text(LEFT, 24, headline(course), font_size=16, font_weight="bold"),
             svg.text(LEFT, 44, verdict.title(prediction), fill=svg.GREY),
             *svg.gib_axis(scale, y, LEFT, RIGHT),
             svg.path(f"{area} Z", "allocated", fill=COLOURS["allocated"]),
             svg.path(svg.through(along(reserved)), "reserved", fill="none", stroke=COLOURS["reserved"],
                      stroke_width=1.8)]
    if limit and limit <= scale:
        parts += [svg.line(LEFT, y(limit), RIGHT, y(limit), stroke=svg.LIMIT, stroke_dasharray="6 4"),
                  svg.text(RIGHT, y(limit) - 5, f"PyTorch may reserve {size_text(limit)}", text_anchor="end",
                           fill=svg.LIMIT)]
    last = f"step {len(course.columns['retries']) - 1:,}{' fails' if course.failure else ''}"
    parts += [svg.text(LEFT, BOTTOM + 18, "start-up"), svg.text(RIGHT, BOTTOM + 18, last, text_anchor="end")]
    for index, (name, colour) in enumerate(COLOURS.items()):
        left = LEFT + 160 * index
        parts += [svg.box(left, BOTTOM + 30, 12, 12, fill=colour), svg.text(left + 17, BOTTOM + 41, f"{name}, GiB")]
    return svg.document(WIDTH, HEIGHT, headline(course), parts)
