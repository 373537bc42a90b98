"""Which shapes share one list of events, and at which shapes a regime is traced.

Batch 1 allocates other copies than larger batches (a size-1 dimension is contiguous either way), and so
do single images. Memory-efficient attention copies a mask whose rows are not whole multiples of 8.
A sequence that reaches a sliding window needs a mask. Regimes are traced one by one and never interpolated across.
"""

from __future__ import annotations

from collections.abc import Iterable

from predictor.sizes import Shape


def regime_of(shape: Shape, *, pads_masks: bool = False, windows: Iterable[int] = ()) -> tuple[str, str, str]:
    """``(batch, images, rows)``: ``1`` or ``many``, twice; ``whole`` or ``padded``, with ``>N`` from a window on.

    Args:
        pads_masks: whether attention pads the rows of its mask to multiples of 8.
        windows: sliding windows of the language model; a sequence that reaches one needs a mask.
    """
    rows = "padded" if pads_masks and shape.sequence % 8 else "whole"
    reached = [window for window in windows if shape.sequence >= window]
    return _count(shape.batch), _count(shape.images), rows + (f">{max(reached)}" if reached else "")


def _count(number: int) -> str:
    return "1" if number == 1 else "many"


def lowest(regime: tuple[str, str, str], tokens_per_image: int) -> Shape:
    """The smallest shape of a regime: every shape in it is at least this in each symbol."""
    batch, images = ({"1": 1, "many": 2}[part] for part in regime[:2])
    return Shape(batch, max(1 + tokens_per_image, _window(regime)), images)


def _window(regime: tuple[str, str, str]) -> int:
    """The longest window that sequences of the regime reach; 0 for none."""
    return int(regime[2].partition(">")[2] or 0)


TEXT = {"padded": (33, 77, 131, 209, 301), "whole": (40, 80, 136, 208, 304)}
"""Text tokens of the traced shapes."""


def traced_shapes(regime: tuple[str, str, str], tokens_per_image: int) -> list[Shape]:
    """Shapes that tell every monomial apart, and one more to check the fit.

    Sequences leave room for the images of a sample.
    """
    batch, images, rows = *regime[:2], regime[2].partition(">")[0]
    per_sample = {"1": (1,), "many": (1, 2) if batch == "many" else (2, 3)}[images]
    batches = (2, 3, 4) if batch == "many" else (1,)
    room = max(max(per_sample) * tokens_per_image, _window(regime))
    offset = -room % 8 if rows == "whole" else -(room - 1) % 8 - 1
    sequences = [room + offset + text for text in TEXT[rows]]
    if batch == "1":
        return [Shape(1, sequences[k], per_sample[k % len(per_sample)]) for k in range(len(per_sample) + 3)]
    plan = [(0, 0, 0), (1, 1, 0), (2, 2, -1), (0, 3, -1), (1, 0, -1), (2, 4, 0), (1, 2, 0), (0, 4, -1), (2, 0, 0)]
    return [Shape(batches[b], sequences[t], batches[b] * per_sample[i]) for b, t, i in plan]
