"""Which shapes share one list of events, and at which shapes a regime is traced.

Batch 1 allocates other copies than larger batches (a size-1 dimension is contiguous either way), and so
do single images. Memory-efficient attention copies a mask whose rows are not whole multiples of 8.
A sequence that reaches a sliding window needs a mask. Some models loop over images, or over pieces of a sequence: their
regimes are narrower, one number of samples and images, or one shape. Regimes are traced one by one and never
interpolated across; which of them a model needs, tracing finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from predictor.events.sizes import Shape

Regime = tuple[str, str, str]
"""``(batch, images, rows)``: ``none``, ``1`` or ``many``, or ``=N``, twice, or ``xN`` images of each sample; ``whole``
or ``padded``, with ``>N`` from a window on, or ``=N`` tokens, or ``none``."""


class NotOneRegime(Exception):
    """Recordings differ in more than sizes, or a size is no polynomial of the shape."""


def regime_of(shape: Shape, *, pads_masks: bool = False, windows: Iterable[int] = ()) -> Regime:
    """The widest regime that a shape may lie in.

    Args:
        pads_masks: whether attention pads the rows of its mask to multiples of 8.
        windows: sliding windows of the language model; a sequence that reaches one needs a mask.
    """
    if not shape.sequence:
        return _count(shape.batch), _count(shape.images), "none"
    rows = "padded" if pads_masks and shape.sequence % 8 else "whole"
    reached = [window for window in windows if shape.sequence >= window]
    return _count(shape.batch), _count(shape.images), rows + (f">{max(reached)}" if reached else "")


def narrowing(widest: Regime, shape: Shape) -> list[Regime]:
    """Regimes that a shape may lie in, the widest first; the last is the shape alone."""
    counts = f"={shape.batch}", f"={shape.images}"
    found = [widest, (*counts, widest[2]), (*counts, f"={shape.sequence}")]
    return found if shape.sequence else [widest, (*counts, "none")]


def of_batches(shape: Shape) -> list[Regime]:
    """The regime of several samples that are each as this shape's; none of a single sample, or of unequal ones."""
    if shape.batch == 1 or shape.images % shape.batch:
        return []
    return [("many", f"x{shape.images // shape.batch}", f"={shape.sequence}")]


def is_wide(regime: Regime) -> bool:
    """Whether it holds more than one number of samples and images."""
    return not regime[0].startswith("=")


def is_alone(regime: Regime) -> bool:
    """Whether it is one shape."""
    return not is_wide(regime) and (regime[2].startswith("=") or regime[2] == "none")


def _count(number: int) -> str:
    return {0: "none", 1: "1"}.get(number, "many")


def _least(part: str) -> int:
    return int(part[1:]) if part.startswith("=") else {"none": 0, "1": 1, "many": 2}[part]


def lowest(regime: Regime, tokens_per_image: int) -> Shape:
    """The smallest shape of a regime: every shape in it is at least this in each symbol."""
    batch = _least(regime[0])
    images = batch * int(regime[1][1:]) if regime[1].startswith("x") else _least(regime[1])
    if regime[2] == "none":
        return Shape(batch, 0, images)
    if regime[2].startswith("="):
        return Shape(batch, int(regime[2][1:]), images)
    return Shape(batch, max(1 + tokens_per_image * bool(images), _window(regime)), images)


def _window(regime: Regime) -> int:
    """The longest window that sequences of the regime reach; 0 for none."""
    return int(regime[2].partition(">")[2] or 0)


TEXT = {"padded": (33, 77, 131, 209, 301), "whole": (40, 80, 136, 208, 304)}
"""Text tokens of the traced shapes."""
PER_SAMPLE = {("many", "none"): (0,), ("many", "1"): (1,), ("many", "many"): (1, 2), ("1", "none"): (0,),
              ("1", "1"): (1,), ("1", "many"): (2, 3)}
"""Images of a sample in the traced shapes, by regime."""
PLAN = ((0, 0, 0), (1, 1, 0), (2, 2, -1), (0, 3, -1), (1, 0, -1), (2, 4, 0), (1, 2, 0), (0, 4, -1), (2, 0, 0))
"""Of several samples: which batch, sequence and number of images go together."""


def traced_shapes(regime: Regime, room_for: Callable[[int], int] = lambda images: 0) -> list[Shape]:
    """Shapes that tell every monomial apart, and one more to check the fit.

    Args:
        room_for: tokens that the images of a sample fill, by their number; sequences leave room for them.
    """
    batch, images, rows = *regime[:2], regime[2].partition(">")[0]
    batches = (2, 3, 4) if batch == "many" else (_least(batch),)
    if rows == "none":
        return [Shape(size, 0, size) for size in batches]
    if rows.startswith("="):
        first = lowest(regime, room_for(1))
        return [Shape(size, first.sequence, first.images // first.batch * size) if is_wide(regime) else first
                for size in batches]
    if is_wide(regime):
        per_sample = PER_SAMPLE[batch, images]
        most = max(per_sample)
    else:
        most = -(-_least(images) // _least(batch))
    room = max(room_for(most), _window(regime))
    offset = -room % 8 if rows == "whole" else -(room - 1) % 8 - 1
    sequences = [room + offset + text for text in TEXT[rows]]
    if not is_wide(regime):
        return [Shape(_least(batch), tokens, _least(images)) for tokens in sequences[:4]]
    if batch == "1":
        return [Shape(1, sequences[k], per_sample[k % len(per_sample)]) for k in range(len(per_sample) + 3)]
    return [Shape(batches[b], sequences[t], batches[b] * per_sample[i]) for b, t, i in PLAN]
