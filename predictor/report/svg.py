"""Draws the timeline as one self-contained SVG file: allocated bytes by factor, and reserved bytes above them."""

from __future__ import annotations

from itertools import groupby

from predictor.answer.prediction import Prediction
from predictor.events.events import Factor, Moment
from predictor.report import svg_elements as svg
from predictor.report import verdict
from predictor.report.timeline_columns import STACK, Column, Stretch, columns
from predictor.report.units import size_text

WIDTH, HEIGHT = 1000, 540
LEFT, RIGHT, TOP, BOTTOM = 64, 984, 84, 420
LEAST = 60  # units that a moment gets at least, for its name
# Colours for readers with colour blindness (Okabe and Ito).
COLOURS = {
    Factor.PARAMETERS: "#0072b2", Factor.OPTIMIZER_STATES: "#56b4e9", Factor.GRADIENTS: "#009e73",
    Factor.INPUTS: "#999999", Factor.ACTIVATIONS: "#f0e442", Factor.COMMUNICATION: "#cc79a7",
    Factor.TEMPORARIES: "#d55e00", Factor.ALLOCATOR: "#000000",
    Factor.KV_CACHE: "#44aa99",
}
RESERVED = "#333333"
HALO: dict[str, str | float] = {"paint_order": "stroke", "stroke": "#ffffff", "stroke_width": 4}
"""Keeps text legible where it lies on a line."""


def draw(prediction: Prediction) -> str:
    """An SVG document: bytes by factor, reserved bytes, the peak, and the capacity if it is close to the highest."""
    drawn, stretches = columns(prediction.timeline(), RIGHT - LEFT, least=LEAST)
    top = max(max(column.bytes, column.reserved_bytes) for column in drawn) or 1
    capacity = prediction.capacity_bytes
    scale = 1.04 * (max(top, capacity) if capacity and capacity <= 2 * top else top)  # room above the highest line
    what = "allocated by factor, and reserved" if prediction.timeline().reserved_bytes else "live bytes requested"
    parts = [
        svg.text(LEFT, 28, verdict.verdict(prediction, advises=False), font_size=16, font_weight="bold"),
        svg.text(LEFT, 50, verdict.title(prediction), fill=svg.GREY),
        svg.text(LEFT, TOP - 8, f"{what}, GiB", fill=svg.GREY),
        *svg.gib_axis(scale, lambda size: _y(size, scale), LEFT, RIGHT),
        *_areas(drawn, scale),
        *_reserved(drawn, scale, prediction),
        *_stretches(stretches),
    ]
    if capacity and capacity <= scale:
        y = _y(capacity, scale)
        parts += [svg.line(LEFT, y, RIGHT, y, stroke=svg.LIMIT, stroke_dasharray="6 4"),
                  svg.text(RIGHT, y - 5, f"capacity {size_text(capacity)}", text_anchor="end", fill=svg.LIMIT)]
    parts += [*_peak(drawn, scale, prediction), *_legend(drawn)]
    return svg.document(WIDTH, HEIGHT, verdict.title(prediction), parts)


def _y(size: float, scale: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * size / scale, 1)


def _areas(drawn: list[Column], scale: float) -> list[str]:
    """A closed path for each factor, from the top of the factors below it to its own top."""
    parts = []
    floor = [0] * len(drawn)
    for factor in STACK:
        ceiling = [low + column.bytes_by_factor.get(factor, 0) for low, column in zip(floor, drawn)]
        if ceiling != floor:
            around = f"M{_steps(ceiling, scale)} L{_steps(floor, scale, backwards=True)} Z"
            parts.append(svg.path(around, factor.value, fill=COLOURS[factor]))
        floor = ceiling
    return parts


def _reserved(drawn: list[Column], scale: float, prediction: Prediction) -> list[str]:
    """The line of reserved bytes, with its legend; nothing if they are not known."""
    sizes = [column.reserved_bytes for column in drawn]
    if not any(sizes):
        return []
    y, peak = BOTTOM + 76, prediction.peak
    other = f"; rank {peak.reserved_rank} reserves the most, {size_text(prediction.peak_reserved_bytes)}" \
        if peak.reserved_rank != peak.rank else ""
    words = ("reserved: what PyTorch holds (torch.cuda.memory_reserved), at most "
             f"{size_text(max(sizes))}{other}")
    return [svg.path(f"M{_steps(sizes, scale)}", "reserved", fill="none", stroke=RESERVED, stroke_width=1.8),
            svg.line(LEFT, y, LEFT + 12, y, stroke=RESERVED, stroke_width=1.8), svg.text(LEFT + 17, y + 4, words)]


def _steps(sizes: list[int], scale: float, backwards: bool = False) -> str:
    """The corners of a staircase, with a stair for each run of equal sizes."""
    corners, x = [], LEFT
    for size, run in groupby(sizes):
        y, start = _y(size, scale), x
        x += sum(1 for _ in run)
        corners += [f"{start},{y}", f"{x},{y}"]
    return " L".join(reversed(corners) if backwards else corners)


def _stretches(stretches: list[Stretch]) -> list[str]:
    parts, labelled = [], None
    for stretch in stretches:
        x, wide = LEFT + stretch.start, stretch.stop - stretch.start
        new_step = stretch.step != labelled
        parts.append(svg.line(x, TOP, x, BOTTOM + (34 if new_step else 18), stroke="#888888",
                              stroke_width=1 if new_step else 0.4))
        name = "step()" if stretch.moment is Moment.OPTIMIZER_STEP else stretch.moment.value
        if wide >= 6.5 * len(name):
            parts.append(svg.text(x + 4, BOTTOM + 15, name, fill=svg.GREY))
        if new_step:
            parts.append(svg.text(x + 4, BOTTOM + 32, f"step {stretch.step}" if stretch.step else "start-up"))
            labelled = stretch.step
    return parts


def _peak(drawn: list[Column], scale: float, prediction: Prediction) -> list[str]:
    place = max(range(len(drawn)), key=lambda i: drawn[i].bytes)
    x, y = LEFT + place + 0.5, _y(drawn[place].bytes, scale)
    side, anchor = (9, "start") if place < len(drawn) / 2 else (-9, "end")
    return [svg.element("circle", cx=x, cy=y, r=4, fill="none", stroke="#000000", stroke_width=1.5),
            svg.text(x + side, max(y - 6, TOP - 20), size_text(drawn[place].bytes), text_anchor=anchor,
                     font_weight="bold", **HALO),
            svg.text(LEFT, HEIGHT - 12, verdict.peak_text(prediction.peak), fill=svg.GREY)]


def _legend(drawn: list[Column]) -> list[str]:
    parts, x = [], LEFT
    for factor in STACK:
        if any(column.bytes_by_factor.get(factor) for column in drawn):
            parts += [svg.box(x, BOTTOM + 50, 12, 12, fill=COLOURS[factor]),
                      svg.text(x + 17, BOTTOM + 60, factor.value)]
            x += 33 + 7 * len(factor.value)
    return parts
