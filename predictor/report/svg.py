"""Draws the timeline as one self-contained SVG file: allocated bytes by factor, and reserved bytes above them."""

from __future__ import annotations

from itertools import groupby

from predictor.answer.prediction import Prediction
from predictor.common.safe_text import markup
from predictor.events.events import Factor, Moment
from predictor.report import verdict
from predictor.report.timeline_columns import STACK, Column, Stretch, columns
from predictor.report.units import GIB, size_text

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
HALO = 'paint-order="stroke" stroke="#ffffff" stroke-width="4"'
"""Keeps text legible where it lies on a line."""


def draw(prediction: Prediction) -> str:
    """An SVG document: bytes by factor, reserved bytes, the peak, and the capacity if it is close to the highest."""
    drawn, stretches = columns(prediction.timeline(), RIGHT - LEFT, least=LEAST)
    top = max(max(column.bytes, column.reserved_bytes) for column in drawn) or 1
    capacity = prediction.capacity_bytes
    scale = 1.04 * (max(top, capacity) if capacity and capacity <= 2 * top else top)  # room above the highest line
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f"<title>{markup(verdict.title(prediction))}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="28" font-size="16" font-weight="bold">{markup(verdict.verdict(prediction))}</text>',
        f'<text x="{LEFT}" y="50" fill="#555555">{markup(verdict.title(prediction))}</text>',
        *_axis(scale, "allocated by factor, and reserved" if prediction.timeline().reserved_bytes
               else "live bytes requested"),
        *_areas(drawn, scale),
        *_reserved(drawn, scale, prediction),
        *_stretches(stretches),
    ]
    if capacity and capacity <= scale:
        y = _y(capacity, scale)
        lines.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}" stroke="#d00000" stroke-dasharray="6 4"/>')
        lines.append(f'<text x="{RIGHT}" y="{y - 5}" text-anchor="end" fill="#d00000">'
                     f"capacity {size_text(capacity)}</text>")
    lines += [*_peak(drawn, scale, prediction), *_legend(drawn), "</svg>"]
    return "\n".join(lines) + "\n"


def _y(size: float, scale: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * size / scale, 1)


def _axis(scale: float, what: str) -> list[str]:
    tick = next(t for power in range(-3, 7) for t in (10**power, 2 * 10**power, 5 * 10**power) if scale / GIB / t <= 8)
    lines = [f'<text x="{LEFT}" y="{TOP - 8}" fill="#555555">{what}, GiB</text>']
    for number in range(int(scale / GIB / tick) + 1):
        y = _y(number * tick * GIB, scale)
        lines.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}" stroke="#dddddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{number * tick:g}</text>')
    return lines


def _areas(drawn: list[Column], scale: float) -> list[str]:
    """A closed path for each factor, from the top of the factors below it to its own top."""
    lines = []
    floor = [0] * len(drawn)
    for factor in STACK:
        ceiling = [low + column.bytes_by_factor.get(factor, 0) for low, column in zip(floor, drawn)]
        if ceiling != floor:
            path = f"M{_steps(ceiling, scale)} L{_steps(floor, scale, backwards=True)} Z"
            lines.append(f'<path d="{path}" fill="{COLOURS[factor]}"><title>{factor.value}</title></path>')
        floor = ceiling
    return lines


def _reserved(drawn: list[Column], scale: float, prediction: Prediction) -> list[str]:
    """The line of reserved bytes, with its legend; nothing if they are not known."""
    sizes = [column.reserved_bytes for column in drawn]
    if not any(sizes):
        return []
    y, peak = BOTTOM + 76, prediction.peak
    other = f"; rank {peak.reserved_rank} reserves the most, {size_text(prediction.peak_reserved_bytes)}" \
        if peak.reserved_rank != peak.rank else ""
    return [f'<path d="M{_steps(sizes, scale)}" fill="none" stroke="{RESERVED}" stroke-width="1.8">'
            "<title>reserved</title></path>",
            f'<line x1="{LEFT}" x2="{LEFT + 12}" y1="{y}" y2="{y}" stroke="{RESERVED}" stroke-width="1.8"/>',
            f'<text x="{LEFT + 17}" y="{y + 4}">reserved: what PyTorch holds (torch.cuda.memory_reserved), at most '
            f"{size_text(max(sizes))}{other}</text>"]


def _steps(sizes: list[int], scale: float, backwards: bool = False) -> str:
    """The corners of a staircase, with a stair for each run of equal sizes."""
    corners, x = [], LEFT
    for size, run in groupby(sizes):
        y, start = _y(size, scale), x
        x += sum(1 for _ in run)
        corners += [f"{start},{y}", f"{x},{y}"]
    return " L".join(reversed(corners) if backwards else corners)


def _stretches(stretches: list[Stretch]) -> list[str]:
    lines, labelled = [], None
    for stretch in stretches:
        x, wide = LEFT + stretch.start, stretch.stop - stretch.start
        new_step = stretch.step != labelled
        lines.append(f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{BOTTOM + (34 if new_step else 18)}" '
                     f'stroke="#888888" stroke-width="{1 if new_step else 0.4}"/>')
        name = "step()" if stretch.moment is Moment.OPTIMIZER_STEP else stretch.moment.value
        if wide >= 6.5 * len(name):
            lines.append(f'<text x="{x + 4}" y="{BOTTOM + 15}" fill="#555555">{name}</text>')
        if new_step:
            text = "start-up" if stretch.step == 0 else f"step {stretch.step}"
            lines.append(f'<text x="{x + 4}" y="{BOTTOM + 32}">{text}</text>')
            labelled = stretch.step
    return lines


def _peak(drawn: list[Column], scale: float, prediction: Prediction) -> list[str]:
    place = max(range(len(drawn)), key=lambda i: drawn[i].bytes)
    x, y = LEFT + place + 0.5, _y(drawn[place].bytes, scale)
    side, anchor = (9, "start") if place < len(drawn) / 2 else (-9, "end")
    return [f'<circle cx="{x}" cy="{y}" r="4" fill="none" stroke="#000000" stroke-width="1.5"/>',
            f'<text x="{x + side}" y="{max(y - 6, TOP - 20)}" text-anchor="{anchor}" '
            f'font-weight="bold" {HALO}>{size_text(drawn[place].bytes)}</text>',
            f'<text x="{LEFT}" y="{HEIGHT - 12}" fill="#555555">{markup(verdict.peak_text(prediction.peak))}</text>']


def _legend(drawn: list[Column]) -> list[str]:
    lines, x = [], LEFT
    for factor in STACK:
        if any(column.bytes_by_factor.get(factor) for column in drawn):
            lines.append(f'<rect x="{x}" y="{BOTTOM + 50}" width="12" height="12" fill="{COLOURS[factor]}"/>')
            lines.append(f'<text x="{x + 17}" y="{BOTTOM + 60}">{factor.value}</text>')
            x += 33 + 7 * len(factor.value)
    return lines
