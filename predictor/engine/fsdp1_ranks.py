"""Which ranks of FSDP1 hold the same parts of what trains, and how many elements.

On many GPUs most shards lie inside one parameter, and all of these are alike. Only the others are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from predictor.engine.fsdp1_units import Flat

NOTHING = -1
"""Code of a shard with nothing that trains."""
SEVERAL = 1 << 30
"""Codes from here on are of shards that are no whole part of one parameter; the others are indices of parameters."""


class Shards(NamedTuple):
    """What trains in the shards of one flat parameter.

    Attributes:
        codes: ``int64[ranks]``; shards with equal codes have equally many elements of the same parameters.
        elements: ``int64[ranks]``.
    """

    codes: np.ndarray
    elements: np.ndarray


class Ranks:
    """The ranks that share flat parameters of one degree."""

    def __init__(self, flats: Sequence[Flat]) -> None:
        shards = [_shards(flat) for flat in flats]
        self._codes = np.stack([of_flat.codes for of_flat in shards], axis=1)
        self._elements = np.sum([of_flat.elements for of_flat in shards], axis=0)

    def key(self, rank: int) -> bytes:
        """Equal for ranks whose optimizers update equally many elements of the same parameters."""
        return self._codes[rank % len(self._codes)].tobytes()

    def elements(self, rank: int) -> int:
        """Elements that a rank's optimizer updates."""
        return int(self._elements[rank % len(self._elements)])


def _shards(flat: Flat) -> Shards:
    """The shards of all ranks."""
    if not flat.original:
        return Shards(np.full(flat.degree, 0 if flat.trains else NOTHING),
                      np.full(flat.degree, flat.shard if flat.trains else 0))
    indices = iter(flat.tensors)
    owners = [NOTHING if padding else next(indices) for _, padding in flat.parts]
    trained = [index if index in flat.tensors and flat.tensors[index].trainable else NOTHING for index in owners]
    ends, begin = np.cumsum([numel for numel, _ in flat.parts]), np.arange(flat.degree) * flat.shard
    first, last = (np.searchsorted(ends, element, side="right") for element in (begin, begin + flat.shard - 1))
    codes = np.array([*trained, NOTHING])[first]  # a shard may begin beyond the end
    elements = np.where(codes == NOTHING, 0, flat.shard)
    known: dict[tuple[tuple[int, int], ...], int] = {}
    for rank in np.flatnonzero(first != last).tolist():
        own = tuple((index, count) for index, count in flat.elements_of(rank).items()
                    if count and flat.tensors[index].trainable)
        codes[rank] = known.setdefault(own, SEVERAL + len(known)) if own else NOTHING
        elements[rank] = sum(count for _, count in own)
    return Shards(codes, elements)
