"""Draws times against sizes on logarithmic axes, as one SVG file, and fits their growth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from predictor.report import svg_elements as svg

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 440, 20, 380
Points = Sequence[tuple[float, float]]
"""Sizes, each with its time in seconds."""


def exponent(points: Points) -> float:
    """The exponent of the power law that fits best, by least squares of the logarithms."""
    sizes, seconds = np.log(np.array(points, dtype=float)).T
    return float(np.polyfit(sizes, seconds, 1)[0])


def drawn(series: Mapping[str, Points]) -> str:
    """An SVG document with a line for each series."""
    sizes, seconds = zip(*(point for points in series.values() for point in points))
    across, up = _axis(sizes, LEFT, RIGHT), _axis(seconds, BOTTOM, TOP)
    parts = []
    for power in _powers(sizes):
        at = across(10**power)
        parts += [svg.line(at, TOP, at, BOTTOM, stroke=svg.FAINT),
                  svg.text(at, BOTTOM + 18, f"{10**power:,}", text_anchor="middle")]
    for power in _powers(seconds):
        at = up(10**power)
        parts += [svg.line(LEFT, at, RIGHT, at, stroke=svg.FAINT),
                  svg.text(LEFT - 6, at + 4, f"{10**power:g} s", text_anchor="end")]
    for row, ((name, points), colour) in enumerate(zip(series.items(), svg.PALETTE)):
        along = svg.through((across(size), up(time)) for size, time in points)
        parts += [svg.path(along, fill="none", stroke=colour, stroke_width=2),
                  svg.text(RIGHT + 12, TOP + 16 + 20 * row, name, fill=colour)]
    return svg.document(WIDTH, HEIGHT, "Seconds against size", parts, font_size=12)


def _powers(values: Sequence[float]) -> range:
    """The powers of ten around some values."""
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)


def _axis(values: Sequence[float], begin: float, end: float):
    """A function from a value to its place on a logarithmic axis."""
    powers = _powers(values)
    least, most = powers[0], max(powers[-1], powers[0] + 1)
    return lambda value: round(begin + (end - begin) * (math.log10(value) - least) / (most - least), 1)
