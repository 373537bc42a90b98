"""Chooses the shapes at which a job is recorded: enough to fit every monomial, and further ones to check the fit.

Like the tracer (``predictor.formula.tracing``, ``predictor.events.regimes``), this treats one sample or image apart
from several, and checks a sequence that is no multiple of 8. Unlike a trace, a recording contains CUDA's real sizes
with their thresholds, so the shapes are near the ones of interest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from predictor.common.errors import InputError
from predictor.events.sizes import Shape

MOST_VALUES = 12


@dataclass(frozen=True)
class Plan:
    """Shapes in the order in which they run.

    Attributes:
        shapes: shapes that always run.
        single_sample: further shapes of batch 1, which run if its list of events differs.
        longest: the most tokens that a sample can have; None if unlimited.
    """

    shapes: tuple[Shape, ...]
    single_sample: tuple[Shape, ...] = ()
    longest: int | None = None


def values_around(symbol: str, centre: int, least: int, most: int | None = None) -> tuple[int, ...]:
    """Default values of a symbol: the requested one and smaller ones.

    Sequences are odd multiples of 8, so that a kernel that rounds up to 16, 32, … tokens shows.
    """
    if symbol == "batch":
        return tuple(sorted({2, 3, max(4, centre)}))
    if symbol == "images":
        return tuple(sorted({1, 2, max(3, centre)}))
    room = max(centre - least, 64)
    steps = [least + max(8, room * part // 8) for part in (2, 4, 6, 8)]
    values = {(-(-step // 8) | 1) * 8 for step in steps}
    if most:
        values = {min(value, most // 8 * 8 or most) for value in values}
    return tuple(sorted(values))


def plan(batches: Sequence[int], sequences: Sequence[int], images: Sequence[int], *, probe: bool,
         longest: int | None = None) -> Plan:
    """Shapes over the values of each symbol. A symbol with one value does not vary.

    Args:
        batches: samples of a micro-batch.
        sequences: tokens of a sample; only 0 if samples have no tokens.
        images: images of a sample.
        probe: also record one sample, and a sequence that is no multiple of 8.
        longest: the most tokens that a sample can have.

    Raises:
        InputError: a symbol has no value or too many.
    """
    for symbol in (batches, sequences, images):
        if not 1 <= len(symbol) <= MOST_VALUES:
            raise InputError(f"1 to {MOST_VALUES} values of each symbol are recorded, not {len(symbol)}")
    values = Values(*(tuple(dict.fromkeys(symbol)) for symbol in (batches, sequences, images)))
    shapes = dict.fromkeys((*values.identifying(), *(values.probes() if probe else ())))
    single_sample = dict.fromkeys(values.of_one_sample() if probe else ())
    return Plan(tuple(shapes), tuple(shape for shape in single_sample if shape not in shapes), longest)


@dataclass(frozen=True)
class Values:
    """The values of each symbol, in the user's order. Methods may give a shape twice."""

    batches: tuple[int, ...]
    sequences: tuple[int, ...]
    images: tuple[int, ...]

    def identifying(self) -> Iterator[Shape]:
        """Shapes that distinguish every monomial."""
        b, s, i = self.batches, self.sequences, self.images
        for k in range(max(len(b), len(s), len(i))):  # all symbols advance together
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
        """Whether the batch varies and always has several samples."""
        return len(self.batches) > 1 and 1 not in self.batches

    def probes(self) -> Iterator[Shape]:
        """Shapes that check a sequence that is no multiple of 8, and one sample."""
        b, s, i = self.batches, self.sequences, self.images
        if len(s) > 1:
            yield _shape(b[0] if len(b) < 3 else b[1], s[-1] - 5, i[0])
        if self._varies_from_two:
            yield _shape(1, s[0], i[0])

    def of_one_sample(self) -> Iterator[Shape]:
        """Further shapes of one sample, in case it allocates differently from several."""
        if not self._varies_from_two:
            return
        s, i = self.sequences, self.images
        for number, sequence in enumerate(s[1:]):
            yield _shape(1, sequence, i[(number + 1) % len(i)])
        if len(s) > 2:
            yield _shape(1, (s[0] + s[1]) // 2 // 8 * 8, i[-1])


def _shape(batch: int, sequence: int, images_per_sample: int) -> Shape:
    return Shape(batch, sequence, batch * images_per_sample)


def shape_text(shape: Shape) -> str:
    """A shape in messages."""
    several = "s" if shape.batch > 1 else ""
    samples = f"{shape.batch} x {shape.sequence} tokens" if shape.sequence else f"{shape.batch} sample{several}"
    return samples + (f" with {shape.images} images" if shape.images else "")
