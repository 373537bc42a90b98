"""Divides a timeline into the columns of a chart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from predictor.answer.prediction import Timeline
from predictor.events.events import Factor, Moment

# From bottom to top: factors that live for the whole step are at the bottom.
STACK = (Factor.PARAMETERS, Factor.OPTIMIZER_STATES, Factor.GRADIENTS, Factor.KV_CACHE, Factor.INPUTS,
         Factor.ACTIVATIONS, Factor.COMMUNICATION, Factor.TEMPORARIES, Factor.ALLOCATOR)


@dataclass(frozen=True)
class Column:
    """The highest point among the events of one column, in bytes by factor.

    Attributes:
        reserved_bytes: the most that PyTorch reserves at any event of the column; 0 if it is not known.
    """

    step: int
    moment: Moment
    bytes_by_factor: Mapping[Factor, int]
    reserved_bytes: int = 0

    @property
    def bytes(self) -> int:
        return sum(self.bytes_by_factor.values())


@dataclass(frozen=True)
class Stretch:
    """Columns ``start`` to ``stop`` belong to one moment of one step (or to one whole step)."""

    step: int
    moment: Moment
    start: int
    stop: int


def columns(timeline: Timeline, width: int, least: int) -> tuple[list[Column], list[Stretch]]:
    """The ``width`` columns of a chart, and the stretches of columns that belong to one moment.

    A moment gets columns in proportion to its events, but at least ``least``, because the optimizer step has
    few events and often contains the peak. If there are too many moments for that (gradient
    accumulation), stretches are whole steps.
    """
    def runs_by(key: Callable[[int], object]) -> list[list[int]]:
        return [list(run) for _, run in groupby(range(len(timeline.index)), key)]

    runs = runs_by(lambda k: (timeline.step[k], timeline.moment[k]))
    if len(runs) * least > width:
        runs = runs_by(lambda k: timeline.step[k])[:width]
        least = min(least, width // len(runs))
    widths = _share_out([len(run) for run in runs], width, least)
    result: list[Column] = []
    stretches = []
    for run, wide in zip(runs, widths):
        stretches.append(Stretch(timeline.step[run[0]], timeline.moment[run[0]], len(result), len(result) + wide))
        for place in range(wide):
            first = len(run) * place // wide
            points = run[first: max(first + 1, len(run) * (place + 1) // wide)]
            result.append(_highest(timeline, points))
    return result, stretches


def _highest(timeline: Timeline, points: Sequence[int]) -> Column:
    def total(k: int) -> int:
        return sum(sizes[k] for sizes in timeline.bytes_by_factor.values())

    k = max(points, key=total)
    factors = {factor: sizes[k] for factor, sizes in timeline.bytes_by_factor.items()}
    if timeline.allocated_bytes:
        factors[Factor.ALLOCATOR] = factors.get(Factor.ALLOCATOR, 0) + timeline.allocated_bytes[k] - total(k)
    reserved = max(timeline.reserved_bytes[point] for point in points) if timeline.reserved_bytes else 0
    return Column(timeline.step[k], timeline.moment[k], factors, reserved)


def _share_out(weights: Sequence[int], width: int, least: int) -> list[int]:
    """Whole shares of ``width`` in proportion to ``weights``, none below ``least``."""
    spare = width - least * len(weights)
    exact = [spare * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    leftover = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])[: spare - sum(shares)]
    return [least + share + (i in leftover) for i, share in enumerate(shares)]
