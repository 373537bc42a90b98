"""Draws times against sizes on logarithmic axes, as one SVG file, and fits their growth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from predictor.common.safe_text import markup

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 440, 20, 380
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000")
"""For readers with colour blindness (Okabe and Ito)."""
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
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             'font-size="12">', "<title>Seconds against size</title>",
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    for power in _powers(sizes):
        at = across(10**power)
        lines += [f'<line x1="{at}" x2="{at}" y1="{TOP}" y2="{BOTTOM}" stroke="#dddddd"/>',
                  f'<text x="{at}" y="{BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>']
    for power in _powers(seconds):
        at = up(10**power)
        lines += [f'<line x1="{LEFT}" x2="{RIGHT}" y1="{at}" y2="{at}" stroke="#dddddd"/>',
                  f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{10**power:g} s</text>']
    for row, ((name, points), colour) in enumerate(zip(series.items(), COLOURS)):
        path = " ".join(f"{across(size)},{up(time)}" for size, time in points)
        lines += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
                  f'<text x="{RIGHT + 12}" y="{TOP + 16 + 20 * row}" fill="{colour}">{markup(name)}</text>']
    return "\n".join([*lines, "</svg>"]) + "\n"


def _powers(values: Sequence[float]) -> range:
    """The powers of ten around some values."""
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)


def _axis(values: Sequence[float], begin: float, end: float):
    """A function from a value to its place on a logarithmic axis."""
    powers = _powers(values)
    least, most = powers[0], max(powers[-1], powers[0] + 1)
    return lambda value: round(begin + (end - begin) * (math.log10(value) - least) / (most - least), 1)
