"""Which shapes share one list of events, and at which shapes a regime is traced.

Batch 1 allocates other copies than larger batches (a size-1 dimension is contiguous either way), and so
do single images. Memory-efficient attention copies a mask whose rows are not whole multiples of 8.
A sequence that reaches a sliding window needs a mask. Some models loop over images, or over pieces of a sequence: their
regimes are narrower, one number of samples and images, or one shape. Regimes are traced one by one and never
interpolated across; which of them a model needs, tracing finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from predictor.events.sizes import Shape


class Amount(Enum):
    """How many samples, or images, as far as a tracer's copies depend on it. The value is how files name it."""

    NONE = "none"
    ONE = "1"
    MANY = "many"

    @classmethod
    def of(cls, number: int) -> Amount:
        """The amount that a number is."""
        return {0: cls.NONE, 1: cls.ONE}.get(number, cls.MANY)

    @property
    def least(self) -> int:
        """The smallest number that is such an amount."""
        return {Amount.NONE: 0, Amount.ONE: 1, Amount.MANY: 2}[self]


class Rows(Enum):
    """Which sequences: none at all, whole multiples of 8, or those whose masks are padded to one."""

    NONE = "none"
    WHOLE = "whole"
    PADDED = "padded"


@dataclass(frozen=True)
class Exactly:
    """One number, of samples, images or tokens, and no other."""

    number: int

    @property
    def least(self) -> int:
        """The number."""
        return self.number


@dataclass(frozen=True)
class ForEachSample:
    """One number of images for each of any number of samples."""

    number: int


class RegimeNames(NamedTuple):
    """A regime as keys and files of formulas name it; their hashes depend on every character."""

    samples: str
    images: str
    rows: str


@dataclass(frozen=True)
class Regime:
    """Shapes that share one list of events.

    Attributes:
        samples: how many a batch has.
        images: how many a batch has.
        rows: which sequences, or how many tokens.
        window: the longest sliding window that the sequences reach; None where they reach none, or are one length.
    """

    samples: Amount | Exactly
    images: Amount | Exactly | ForEachSample
    rows: Rows | Exactly
    window: int | None = None

    @property
    def is_wide(self) -> bool:
        """Whether it holds more than one number of samples and images."""
        return isinstance(self.samples, Amount)

    @property
    def is_alone(self) -> bool:
        """Whether it is one shape."""
        return not self.is_wide and (isinstance(self.rows, Exactly) or self.rows is Rows.NONE)

    @property
    def counts(self) -> tuple[Amount | Exactly, Amount | Exactly | ForEachSample]:
        """What it says of samples and images, whatever the sequences are."""
        return self.samples, self.images

    def names(self) -> RegimeNames:
        """As keys and files write it: ``none``, ``1``, ``many`` or ``=N`` of each, or ``xN`` images of each sample;
        ``whole`` or ``padded``, with ``>N`` from a window on, or ``=N`` tokens, or ``none``."""
        reached = "" if self.window is None else f">{self.window}"
        return RegimeNames(_written(self.samples), _written(self.images), _written(self.rows) + reached)

    @classmethod
    def parse(cls, names: Sequence[str]) -> Regime:
        """The opposite of :meth:`names`."""
        samples, images, sequences = names
        rows, _, window = sequences.partition(">")
        of_each = ForEachSample(int(images[1:])) if images.startswith("x") else None
        return cls(_exactly(samples) or Amount(samples), of_each or _exactly(images) or Amount(images),
                   _exactly(rows) or Rows(rows), int(window) if window else None)


def _written(part: Amount | Rows | Exactly | ForEachSample) -> str:
    if isinstance(part, Exactly):
        return f"={part.number}"
    return f"x{part.number}" if isinstance(part, ForEachSample) else part.value


def _exactly(name: str) -> Exactly | None:
    return Exactly(int(name[1:])) if name.startswith("=") else None


class NotOneRegime(Exception):
    """Recordings differ in more than sizes, or a size is no polynomial of the shape."""


def regime_of(shape: Shape, *, pads_masks: bool = False, windows: Iterable[int] = ()) -> Regime:
    """The widest regime that a shape may lie in.

    Args:
        pads_masks: whether attention pads the rows of its mask to multiples of 8.
        windows: sliding windows of the language model; a sequence that reaches one needs a mask.
    """
    samples, images = Amount.of(shape.batch), Amount.of(shape.images)
    if not shape.sequence:
        return Regime(samples, images, Rows.NONE)
    rows = Rows.PADDED if pads_masks and shape.sequence % 8 else Rows.WHOLE
    return Regime(samples, images, rows, max((window for window in windows if shape.sequence >= window), default=None))


def narrowing(widest: Regime, shape: Shape) -> list[Regime]:
    """Regimes that a shape may lie in, the widest first; the last is the shape alone."""
    counted = replace(widest, samples=Exactly(shape.batch), images=Exactly(shape.images))
    if not shape.sequence:
        return [widest, replace(counted, rows=Rows.NONE, window=None)]
    return [widest, counted, replace(counted, rows=Exactly(shape.sequence), window=None)]


def of_batches(shape: Shape) -> list[Regime]:
    """The regime of several samples that are each as this shape's; none of a single sample, or of unequal ones."""
    if shape.batch == 1 or shape.images % shape.batch:
        return []
    return [Regime(Amount.MANY, ForEachSample(shape.images // shape.batch), Exactly(shape.sequence))]


def lowest(regime: Regime, tokens_per_image: int) -> Shape:
    """The smallest shape of a regime: every shape in it is at least this in each symbol."""
    batch, counted = regime.samples.least, regime.images
    images = batch * counted.number if isinstance(counted, ForEachSample) else counted.least
    if regime.rows is Rows.NONE:
        return Shape(batch, 0, images)
    if isinstance(regime.rows, Exactly):
        return Shape(batch, regime.rows.number, images)
    return Shape(batch, max(1 + tokens_per_image * bool(images), regime.window or 0), images)


TEXT = {Rows.PADDED: (33, 77, 131, 209, 301), Rows.WHOLE: (40, 80, 136, 208, 304)}
"""Text tokens of the traced shapes."""
PER_SAMPLE = {(Amount.MANY, Amount.NONE): (0,), (Amount.MANY, Amount.ONE): (1,), (Amount.MANY, Amount.MANY): (1, 2),
              (Amount.ONE, Amount.NONE): (0,), (Amount.ONE, Amount.ONE): (1,), (Amount.ONE, Amount.MANY): (2, 3)}
"""Images of a sample in the traced shapes, by regime."""
PLAN = ((0, 0, 0), (1, 1, 0), (2, 2, -1), (0, 3, -1), (1, 0, -1), (2, 4, 0), (1, 2, 0), (0, 4, -1), (2, 0, 0))
"""Of several samples: which batch, sequence and number of images go together."""


def traced_shapes(regime: Regime, room_for: Callable[[int], int] = lambda images: 0) -> list[Shape]:
    """Shapes that tell every monomial apart, and one more to check the fit.

    Args:
        room_for: tokens that the images of a sample fill, by their number; sequences leave room for them.
    """
    least = regime.samples.least
    batches = (2, 3, 4) if regime.samples is Amount.MANY else (least,)
    if regime.rows is Rows.NONE:
        return [Shape(size, 0, size) for size in batches]
    if isinstance(regime.rows, Exactly):
        first = lowest(regime, room_for(1))
        return [Shape(size, first.sequence, first.images // first.batch * size) if regime.is_wide else first
                for size in batches]
    if not regime.is_wide:
        images = regime.images.least
        return [Shape(least, tokens, images) for tokens in _sequences(regime, room_for(-(-images // least)))[:4]]
    per_sample = PER_SAMPLE[regime.counts]
    sequences = _sequences(regime, room_for(max(per_sample)))
    if regime.samples is Amount.ONE:
        return [Shape(1, sequences[k], per_sample[k % len(per_sample)]) for k in range(len(per_sample) + 3)]
    return [Shape(batches[b], sequences[t], batches[b] * per_sample[i]) for b, t, i in PLAN]


def _sequences(regime: Regime, filled: int) -> list[int]:
    """Lengths of the traced shapes, from what images fill, or from the window, on."""
    room = max(filled, regime.window or 0)
    offset = -room % 8 if regime.rows is Rows.WHOLE else -(room - 1) % 8 - 1
    return [room + offset + text for text in TEXT[regime.rows]]
