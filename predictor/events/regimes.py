"""Regimes: sets of shapes that share one list of events, and the shapes at which each regime is traced.

Batch 1 allocates other copies than larger batches (a size-1 dimension is contiguous either way), and so
do single images. Memory-efficient attention copies a mask whose rows are not multiples of 8.
A sequence that reaches a sliding window needs a mask. Some models loop over images, or over pieces of a sequence: their
regimes are narrower, with one number of samples and images, or one shape. Each regime is traced separately, and sizes
are never interpolated between regimes. Tracing finds out how narrow a model's regimes must be.

Regimes of one number of images may follow from each other: if each further image adds passes to loops and changes
nothing else, they form a family, whose events are traced together (:mod:`predictor.formula.fold`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from predictor.events.sizes import Shape


class Amount(Enum):
    """A number of samples or images, as coarsely as copies depend on it. The value is its name in files."""

    NONE = "none"
    ONE = "1"
    MANY = "many"

    @classmethod
    def of(cls, number: int) -> Amount:
        """The amount that a number belongs to."""
        return {0: cls.NONE, 1: cls.ONE}.get(number, cls.MANY)

    @property
    def least(self) -> int:
        """The smallest number of this amount."""
        return {Amount.NONE: 0, Amount.ONE: 1, Amount.MANY: 2}[self]


class Rows(Enum):
    """Class of sequence lengths: none (no text), multiples of 8, or lengths whose attention masks are padded to one."""

    NONE = "none"
    WHOLE = "whole"
    PADDED = "padded"


@dataclass(frozen=True)
class Exactly:
    """Exactly this number of samples, images or tokens."""

    number: int

    @property
    def least(self) -> int:
        """The number."""
        return self.number


@dataclass(frozen=True)
class ForEachSample:
    """The same number of images in each sample, for any number of samples."""

    number: int


class RegimeNames(NamedTuple):
    """The name of a regime in keys and formula files. Hashes of keys depend on every character."""

    samples: str
    images: str
    rows: str


@dataclass(frozen=True)
class Regime:
    """Shapes that share one list of events.

    Attributes:
        samples: samples in a batch.
        images: images in a batch.
        rows: class of sequence lengths, or one length in tokens.
        window: the longest sliding window that the sequences reach, in tokens; None if they reach none, or if the
            regime has one length.
    """

    samples: Amount | Exactly
    images: Amount | Exactly | ForEachSample
    rows: Rows | Exactly
    window: int | None = None

    @property
    def is_wide(self) -> bool:
        """Whether it contains more than one number of samples and images."""
        return isinstance(self.samples, Amount) or self.is_family

    @property
    def is_family(self) -> bool:
        """Whether it stands for a family of regimes: any number of samples with as many images in each, or one sample
        with any number of images."""
        one_sample = isinstance(self.samples, Exactly) and self.images is Amount.MANY
        return isinstance(self.rows, Rows) and (isinstance(self.images, ForEachSample) or one_sample)

    def units(self, shape: Shape) -> int:
        """What the members of the family have different numbers of: samples with their images, or images."""
        return shape.batch if isinstance(self.images, ForEachSample) else shape.images

    def member(self, shape: Shape) -> Regime:
        """The regime of the family that contains a shape."""
        return replace(self, samples=Exactly(shape.batch), images=Exactly(shape.images))

    @property
    def is_alone(self) -> bool:
        """Whether it contains a single shape."""
        return not self.is_wide and (isinstance(self.rows, Exactly) or self.rows is Rows.NONE)

    @property
    def counts(self) -> tuple[Amount | Exactly, Amount | Exactly | ForEachSample]:
        """Its samples and images, without the sequences."""
        return self.samples, self.images

    def names(self) -> RegimeNames:
        """The name in keys and files.

        Samples and images: ``none``, ``1``, ``many`` or ``=N``; images also ``xN`` (N in each sample). Sequences:
        ``none``, ``=N`` tokens, ``whole`` or ``padded``; ``>N`` is appended if they reach a window of N tokens.
        """
        reached = "" if self.window is None else f">{self.window}"
        return RegimeNames(_name_of(self.samples), _name_of(self.images), _name_of(self.rows) + reached)

    @classmethod
    def parse(cls, names: Sequence[str]) -> Regime:
        """Inverse of :meth:`names`."""
        samples, images, sequences = names
        rows, _, window = sequences.partition(">")
        per_sample = ForEachSample(int(images[1:])) if images.startswith("x") else None
        return cls(_exactly(samples) or Amount(samples), per_sample or _exactly(images) or Amount(images),
                   _exactly(rows) or Rows(rows), int(window) if window else None)


def _name_of(part: Amount | Rows | Exactly | ForEachSample) -> str:
    if isinstance(part, Exactly):
        return f"={part.number}"
    return f"x{part.number}" if isinstance(part, ForEachSample) else part.value


def _exactly(name: str) -> Exactly | None:
    return Exactly(int(name[1:])) if name.startswith("=") else None


class NotOneRegime(Exception):
    """Raised when shapes do not share a regime: their recordings differ in more than sizes, or a size is not a
    polynomial of the shape."""


def regime_of(shape: Shape, *, pads_masks: bool = False, windows: Iterable[int] = ()) -> Regime:
    """The widest regime that may contain a shape.

    Args:
        pads_masks: whether attention pads the rows of its mask to multiples of 8.
        windows: sliding windows of the language model, in tokens; a sequence that reaches one needs a mask.
    """
    samples, images = Amount.of(shape.batch), Amount.of(shape.images)
    if not shape.sequence:
        return Regime(samples, images, Rows.NONE)
    rows = Rows.PADDED if pads_masks and shape.sequence % 8 else Rows.WHOLE
    return Regime(samples, images, rows, max((window for window in windows if shape.sequence >= window), default=None))


def regimes_from_widest(widest: Regime, shape: Shape) -> list[Regime]:
    """Regimes that may contain a shape, from the widest to the single shape."""
    exact = widest.member(shape)
    if not shape.sequence:
        return [widest, replace(exact, rows=Rows.NONE, window=None)]
    return [widest, *_family_of(widest, shape), exact, replace(exact, rows=Exactly(shape.sequence), window=None)]


def _family_of(widest: Regime, shape: Shape) -> list[Regime]:
    """The family of regimes that contains a shape of several images; none if its samples have unequal numbers."""
    if shape.images < FEWEST_UNITS or shape.images % shape.batch:
        return []
    if shape.batch == 1:
        return [replace(widest, samples=Exactly(1))]
    return [replace(widest, images=ForEachSample(shape.images // shape.batch))]


def regime_of_equal_samples(shape: Shape) -> list[Regime]:
    """The regime of any number of samples that each equal a sample of this shape; empty if the shape has one sample, or
    if its samples have unequal numbers of images."""
    if shape.batch == 1 or shape.images % shape.batch:
        return []
    return [Regime(Amount.MANY, ForEachSample(shape.images // shape.batch), Exactly(shape.sequence))]


def smallest_shape(regime: Regime, tokens_per_image: int) -> Shape:
    """The smallest shape of a regime: no shape in it has a smaller batch, sequence or number of images."""
    batch, amount = regime.samples.least, regime.images
    images = batch * amount.number if isinstance(amount, ForEachSample) else amount.least
    if regime.rows is Rows.NONE:
        return Shape(batch, 0, images)
    if isinstance(regime.rows, Exactly):
        return Shape(batch, regime.rows.number, images)
    return Shape(batch, max(1 + tokens_per_image * bool(images), regime.window or 0), images)


TEXT = {Rows.PADDED: (33, 77, 131, 209, 301), Rows.WHOLE: (40, 80, 136, 208, 304)}
"""Text tokens of the traced shapes."""
PER_SAMPLE: dict[tuple[Amount | Exactly, Amount | Exactly | ForEachSample], tuple[int, ...]] = {
    (Amount.MANY, Amount.NONE): (0,), (Amount.MANY, Amount.ONE): (1,), (Amount.MANY, Amount.MANY): (1, 2),
    (Amount.ONE, Amount.NONE): (0,), (Amount.ONE, Amount.ONE): (1,), (Amount.ONE, Amount.MANY): (2, 3)}
"""Images of a sample in the traced shapes, by the regime's samples and images; of several samples with one image
together, the first has it."""
FEWEST_UNITS = 2
"""The smallest member of a family that is traced: it has the events of a single pass and of a second one."""
FAMILY_PLAN = ((0, 0), (1, 1), (2, 2), (0, 3), (1, 0), (0, 4), (1, 4))
"""Traced shapes of a family: units beyond :data:`FEWEST_UNITS`, and the index of the sequence. All but the first two
are checked by the others."""
FOR_SQUARES = ((2, 0), (3, 1))
"""Further shapes that determine squares of the units, and check them: attention among the patches of all images has a
mask of their number squared."""
PLAN = ((0, 0, 0), (1, 1, 0), (2, 2, -1), (0, 3, -1), (1, 0, -1), (2, 4, 0), (1, 2, 0), (0, 4, -1), (2, 0, 0))
"""Traced shapes of several samples: indices of the batch, the sequence and the images that are combined."""


def traced_shapes(regime: Regime, room_for: Callable[[int], int] = lambda images: 0, *,
                  squares: bool = False) -> list[Shape]:
    """Shapes at which to trace a regime: enough to determine every monomial, and one more to check the fit.

    Args:
        room_for: function from the number of images in a sample to the tokens that they fill; the traced sequences are
            longer than that.
        squares: whether sizes in a family may have squares of its units.
    """
    if regime.is_family:
        return _shapes_of_family(regime, room_for, FAMILY_PLAN + FOR_SQUARES * squares)
    least = regime.samples.least
    batches = (2, 3, 4) if regime.samples is Amount.MANY else (least,)
    if regime.rows is Rows.NONE:
        return [Shape(size, 0, size) for size in batches]
    if isinstance(regime.rows, Exactly):
        first = smallest_shape(regime, room_for(1))
        return [Shape(size, first.sequence, first.images // first.batch * size) if regime.is_wide else first
                for size in batches]
    if not regime.is_wide:
        assert not isinstance(regime.images, ForEachSample)  # those regimes have one sequence length
        images = regime.images.least
        return [Shape(least, tokens, images) for tokens in _sequences(regime, room_for(-(-images // least)))[:4]]
    per_sample = PER_SAMPLE[regime.counts]
    sequences = _sequences(regime, room_for(max(per_sample)))
    if regime.samples is Amount.ONE:
        return [Shape(1, sequences[k], per_sample[k % len(per_sample)]) for k in range(len(per_sample) + 3)]
    return [Shape(batches[b], sequences[t], 1 if regime.images is Amount.ONE else batches[b] * per_sample[i])
            for b, t, i in PLAN]


def _shapes_of_family(regime: Regime, room_for: Callable[[int], int], plan: Sequence[tuple[int, int]]) -> list[Shape]:
    """The first two are also the first two of the widest regime, if they can: they are traced once for both."""
    per_sample = regime.images.number if isinstance(regime.images, ForEachSample) else None
    of_widest = PER_SAMPLE[Amount.MANY if per_sample else Amount.ONE, Amount.MANY]
    shapes = []
    for more, index in plan:
        units = FEWEST_UNITS + more
        tokens = _sequences(regime, room_for(max(per_sample or units, *of_widest)))[index]
        shapes.append(Shape(units, tokens, units * per_sample) if per_sample else Shape(1, tokens, units))
    return shapes


def _sequences(regime: Regime, filled: int) -> list[int]:
    """Sequence lengths of the traced shapes: beyond the tokens that images fill, and beyond the window."""
    assert isinstance(regime.rows, Rows)
    room = max(filled, regime.window or 0)
    offset = -room % 8 if regime.rows is Rows.WHOLE else -(room - 1) % 8 - 1
    return [room + offset + text for text in TEXT[regime.rows]]
