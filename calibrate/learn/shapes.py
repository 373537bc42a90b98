"""Which shapes a job is recorded at: enough to tell every monomial apart, and more to check what was found.

As the tracer does (``predictor.formula.tracing``, ``predictor.events.regimes``) batches and images of one are learned
apart from more of them, and a sequence that is no multiple of 8 is among the checks. Unlike a trace a recording has
CUDA's own sizes, with their thresholds: the shapes lie around the ones that are of interest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from predictor.common.errors import InputError
from predictor.events.sizes import Shape

MOST_VALUES = 12


@dataclass(frozen=True)
class Plan:
    """Shapes in the order they are run.

    Attributes:
        shapes: those that are run always.
        alone: further ones of batch 1 if its list differs.
        longest: tokens that a sample has at most, if that is limited.
    """

    shapes: tuple[Shape, ...]
    alone: tuple[Shape, ...] = ()
    longest: int | None = None


def values_around(symbol: str, centre: int, least: int, most: int | None = None) -> tuple[int, ...]:
    """Values that are tried by default: the asked one, and smaller ones. Sequences are odd multiples of 8, so that a
    size that a kernel rounds up to 16, 32, … tokens shows."""
    if symbol == "batch":
        return tuple(sorted({2, 3, max(4, centre)}))
    if symbol == "images":
        return tuple(sorted({1, 2, max(3, centre)}))
    room = max(centre - least, 64)
    steps = [least + max(8, room * part // 8) for part in (2, 4, 6, 8)]
    end = most // 8 * 8 or most if most else math.inf
    return tuple(sorted({min((-(-step // 8) | 1) * 8, end) for step in steps}))


def plan(batches: Sequence[int], sequences: Sequence[int], images: Sequence[int], *, probe: bool,
         longest: int | None = None) -> Plan:
    """Shapes over the values of each symbol; one value: it does not vary.

    Args:
        batches: samples of a micro batch.
        sequences: tokens; 0 alone where samples have none.
        images: of a sample; a single value follows the batch.
        probe: also look at one sample and at a sequence that is no multiple of 8.
        longest: tokens that a sample has at most.
    """
    for values in (batches, sequences, images):
        if not 1 <= len(values) <= MOST_VALUES:
            raise InputError(f"1 to {MOST_VALUES} values of each symbol are recorded, not {len(values)}")
    b, s, i = (list(dict.fromkeys(values)) for values in (batches, sequences, images))
    shapes: list[Shape] = []

    def add(batch: int, sequence: int, per_sample: int) -> None:
        shape = Shape(batch, sequence, batch * per_sample)
        if shape not in shapes:
            shapes.append(shape)

    for k in range(max(len(b), len(s), len(i))):  # each symbol over all its values, the others along
        add(b[min(k, len(b) - 1)], s[min(k, len(s) - 1)], i[min(k, len(i) - 1)])
    for number, batch in enumerate(b):
        for k in ((0, len(s) - 1) if number in (0, len(b) - 1) else (number % len(s),)):
            add(batch, s[k], i[(number + k) % len(i)])
    if len(s) > 2:
        add(b[0], s[len(s) // 2], i[-1])
        add(b[-1], s[1], i[0])
    if len(i) > 1:
        add(b[-1], s[0], i[-1])
        add(b[0], s[-1], i[0])
    alone: list[Shape] = []
    if probe and len(s) > 1:
        add(b[0] if len(b) < 3 else b[1], s[-1] - 5, i[0])
    if probe and len(b) > 1 and 1 not in b:
        add(1, s[0], i[0])
        alone = [Shape(1, sequence, i[(number + 1) % len(i)]) for number, sequence in enumerate(s[1:])]
        if len(s) > 2:
            alone.append(Shape(1, (s[0] + s[1]) // 2 // 8 * 8, i[-1]))
    return Plan(tuple(shapes), tuple(shape for shape in dict.fromkeys(alone) if shape not in shapes), longest)


def told(shape: Shape) -> str:
    """A shape in messages."""
    several = "s" if shape.batch > 1 else ""
    samples = f"{shape.batch} x {shape.sequence} tokens" if shape.sequence else f"{shape.batch} sample{several}"
    return samples + (f" with {shape.images} images" if shape.images else "")
