"""Which shapes a job is recorded at: enough to tell every monomial apart, and more to check what was found.

As the tracer does (``predictor.formula.tracing``, ``predictor.events.regimes``) batches and images of one are learned
apart from more of them, and a sequence that is no multiple of 8 is among the checks. Unlike a trace a recording has
CUDA's own sizes, with their thresholds: the shapes lie around the ones that are of interest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    values = Values(*(tuple(dict.fromkeys(values)) for values in (batches, sequences, images)))
    shapes = dict.fromkeys((*values.told_apart(), *(values.probes() if probe else ())))
    alone = dict.fromkeys(values.of_one_sample() if probe else ())
    return Plan(tuple(shapes), tuple(shape for shape in alone if shape not in shapes), longest)


@dataclass(frozen=True)
class Values:
    """What each symbol is recorded at, in the order that was given; shapes may come twice."""

    batches: tuple[int, ...]
    sequences: tuple[int, ...]
    images: tuple[int, ...]

    def told_apart(self) -> Iterator[Shape]:
        """Shapes that tell every monomial apart."""
        b, s, i = self.batches, self.sequences, self.images
        for k in range(max(len(b), len(s), len(i))):  # each symbol over all its values, the others along
            yield _shape(b[min(k, len(b) - 1)], s[min(k, len(s) - 1)], i[min(k, len(i) - 1)])
        for number, batch in enumerate(b):
            for k in ((0, len(s) - 1) if number in (0, len(b) - 1) else (number % len(s),)):
                yield _shape(batch, s[k], i[(number + k) % len(i)])
        if len(s) > 2:
            yield _shape(b[0], s[len(s) // 2], i[-1])
            yield _shape(b[-1], s[1], i[0])
        if len(i) > 1:
            yield _shape(b[-1], s[0], i[-1])
            yield _shape(b[0], s[-1], i[0])

    @property
    def _varies_from_two(self) -> bool:
        """Whether batches vary, all of more than one sample."""
        return len(self.batches) > 1 and 1 not in self.batches

    def probes(self) -> Iterator[Shape]:
        """A sequence that is no multiple of 8, and one sample."""
        b, s, i = self.batches, self.sequences, self.images
        if len(s) > 1:
            yield _shape(b[0] if len(b) < 3 else b[1], s[-1] - 5, i[0])
        if self._varies_from_two:
            yield _shape(1, s[0], i[0])

    def of_one_sample(self) -> Iterator[Shape]:
        """Further shapes of one sample, for where its allocations are others than those of several."""
        if not self._varies_from_two:
            return
        s, i = self.sequences, self.images
        for number, sequence in enumerate(s[1:]):
            yield _shape(1, sequence, i[(number + 1) % len(i)])
        if len(s) > 2:
            yield _shape(1, (s[0] + s[1]) // 2 // 8 * 8, i[-1])


def _shape(batch: int, sequence: int, images_per_sample: int) -> Shape:
    return Shape(batch, sequence, batch * images_per_sample)


def told(shape: Shape) -> str:
    """A shape in messages."""
    several = "s" if shape.batch > 1 else ""
    samples = f"{shape.batch} x {shape.sequence} tokens" if shape.sequence else f"{shape.batch} sample{several}"
    return samples + (f" with {shape.images} images" if shape.images else "")
