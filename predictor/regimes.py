"""Which shapes share one list of events, and at which shapes a regime is traced.

Batch 1 allocates other copies than larger batches (a size-1 dimension is contiguous either way), and no
images take another path than some. Regimes are traced one by one and never interpolated across.
"""

from __future__ import annotations

from predictor.sizes import Shape


def regime_of(shape: Shape) -> tuple[str, str]:
    """``(batch, images)``: ``1`` or ``many``, and ``0``, ``1`` or ``many``."""
    return _count(shape.batch), _count(shape.images)


def _count(number: int) -> str:
    return str(number) if number < 2 else "many"


def lowest(regime: tuple[str, str], tokens_per_image: int) -> Shape:
    """The smallest shape of a regime: every shape in it is at least this in each symbol."""
    batch, images = ({"0": 0, "1": 1, "many": 2}[part] for part in regime)
    return Shape(batch, 1 + (tokens_per_image if images else 0), images)


def traced_shapes(regime: tuple[str, str], tokens_per_image: int) -> list[Shape]:
    """Shapes that tell every monomial apart, and one more to check the fit.

    Sequences are odd and leave room for two images a sample.
    """
    batch, images = regime
    text = (33, 77, 131, 209, 301)
    per_sample = {"0": (0,), "1": (1,), "many": (1, 2) if batch == "many" else (2, 3)}[images]
    batches = (2, 3, 4) if batch == "many" else (1,)
    room = max(per_sample) * tokens_per_image
    if batch == "1" and len(per_sample) == 1:
        return [Shape(1, room + extra, per_sample[0]) for extra in text[:4]]
    if batch == "1":
        return [Shape(1, room + text[k], per_sample[k % 2]) for k in range(5)]
    plan = [(0, 0, 0), (1, 1, 0), (2, 2, -1), (0, 3, -1), (1, 0, -1), (2, 4, 0), (1, 2, 0), (0, 4, -1), (2, 0, 0)]
    return [Shape(batches[b], room + text[t], batches[b] * per_sample[i]) for b, t, i in plan]
