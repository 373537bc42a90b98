"""Drawing functions for figures: scales, axes, marks and legends as SVG elements.

Colours are CSS classes (``page.css``), so that a drawing works in light and in dark mode. Marks differ in shape as well
as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from predictor.report import svg_elements as svg

WIDTH = 760
"""Width of every figure in SVG units; text is 12 units high."""
CHARACTER = 6.3
"""Mean width of a character in SVG units."""
LEGEND_ROW = 18
"""Distance between two rows of a legend in SVG units."""


@dataclass(frozen=True)
class Scale:
    """Maps values from ``low`` to ``high`` to SVG units from ``start`` to ``stop``, linearly after ``bend``."""

    low: float
    high: float
    start: float
    stop: float
    bend: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        first, last = self.bend(self.low), self.bend(self.high)
        return round(self.start + (self.bend(value) - first) / (last - first) * (self.stop - self.start), 1)


def symlog(threshold: float) -> Callable[[float], float]:
    """A ``bend`` that is logarithmic on both sides of 0, and about linear within the threshold."""
    return lambda value: math.copysign(math.log10(1 + abs(value) / threshold), value)


def decades(low: float, high: float) -> list[float]:
    """Ticks 1, 2, 5, 10, 20 … between two values above 0; denser ticks if the values are close to each other."""
    steps = (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [step * 10.0 ** power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
             for step in steps]
    return [value for value in ticks if low <= value <= high]


def even(high: float, most: int = 8) -> list[float]:
    """Ticks from 0 to ``high``: at most ``most`` round steps."""
    step = next(size for power in range(-6, 9) for size in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
                if high / size <= most)
    return [step * place for place in range(int(high / step) + 1)]


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """One line of text; ``style`` is a CSS class."""
    return svg.text(x, y, words, text_anchor=anchor, style=style)


def fitting(words: str, room: float) -> str:
    """Cuts the words to a width of ``room`` SVG units."""
    most = int(room / CHARACTER)
    return words if len(words) <= most else words[:most - 1] + "…"


def line(x1: float, y1: float, x2: float, y2: float, style: str = "grid") -> str:
    """A straight line."""
    return svg.line(x1, y1, x2, y2, style=style)


def path(points: Iterable[tuple[float, float]], style: str) -> str:
    """A line through points."""
    return svg.path(svg.through(points), style=style)


def box(x: float, y: float, width: float, height: float, style: str, title: str = "") -> str:
    """A rectangle; ``title`` shows while the pointer is over it."""
    return svg.box(x, y, max(width, 0), height, title, style=style)


def _round(x: float, y: float, r: float, title: str, style: str) -> str:
    return svg.element("circle", svg.named(title), cx=x, cy=y, r=r, style=style)


def _square(x: float, y: float, r: float, title: str, style: str) -> str:
    return svg.box(x - .9 * r, y - .9 * r, 1.8 * r, 1.8 * r, title, style=style)


def _triangle(x: float, y: float, r: float, title: str, style: str) -> str:
    return svg.path(f"M{x:g},{y - 1.2 * r:g} l{1.2 * r:g},{2.1 * r:g} h{-2.4 * r:g} Z", title, style=style)


def _rhombus(x: float, y: float, r: float, title: str, style: str) -> str:
    sides = " ".join(f"l{dx * 1.3 * r:g},{dy * 1.3 * r:g}" for dx, dy in ((1, 1), (-1, 1), (-1, -1)))
    return svg.path(f"M{x:g},{y - 1.3 * r:g} {sides} Z", title, style=style)


SHAPES: tuple[Callable[[float, float, float, str, str], str], ...] = (_round, _square, _triangle, _rhombus)


def mark(x: float, y: float, series: int, title: str = "", radius: float = 4, style: str = "mark") -> str:
    """A mark of a series, with the shape and colour of that series."""
    number = series % len(SHAPES)
    return SHAPES[number](x, y, radius, title, f"{style} s{number}")


def legend(x: float, y: float, items: Sequence[tuple[str, str]]) -> list[str]:
    """A legend of pairs of an element (drawn around 0, 0) and words, from the point (``x``, ``y``) on."""
    parts = []
    for (left, row), (element, words) in zip(flow(x, items), items):
        base = y + LEGEND_ROW * row
        parts += [f'<g transform="translate({left:g} {base - 4:g})">{element}</g>', text(left + 12, base, words)]
    return parts


def flow(x: float, items: Sequence[tuple[str, str]]) -> list[tuple[float, int]]:
    """Left edge and row of each legend item. An item that would leave the figure moves to the next row."""
    places, left, row = [], x, 0
    for _, words in items:
        width = 12 + CHARACTER * len(words)
        if left > x and left + width > WIDTH:
            left, row = x, row + 1
        places.append((left, row))
        left += width + 22
    return places


def upright(scale: Scale, ticks: Iterable[float], left: float, right: float, words: Callable[[float], str]
            ) -> list[str]:
    """Horizontal lines at the ticks of a vertical scale, with their values to the left."""
    return [part for value in ticks for part in (line(left, scale(value), right, scale(value)),
                                                 text(left - 6, scale(value) + 4, words(value), "tick", "end"))]


def level(scale: Scale, ticks: Iterable[float], top: float, bottom: float, words: Callable[[float], str]) -> list[str]:
    """Vertical lines at the ticks of a horizontal scale, with their values below."""
    return [part for value in ticks for part in (line(scale(value), top, scale(value), bottom),
                                                 text(scale(value), bottom + 16, words(value), "tick", "middle"))]
