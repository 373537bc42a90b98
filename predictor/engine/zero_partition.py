"""Layout of ZeRO's partitions: an optimizer group's flat buffer is cut into one partition for each rank.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: ``__init__`` (flattening, alignment),
``get_partition_info``, ``initialize_gradient_partition``, ``_round_robin_reorder``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np

NCCL_START_ALIGNMENT = 2
"""``nccl_start_alignment_factor``: flat sizes are multiples of this times the degree, in elements."""


class Slice(NamedTuple):
    """The part of one parameter that is in one rank's partition; ``numel`` is its number of elements."""

    parameter: int
    rank: int
    numel: int


@dataclass(frozen=True, eq=False)
class Group:
    """One optimizer group. Equal ones are one object (:func:`partition`), as comparing all slices takes time.

    Attributes:
        parameters: indices into the model's parameters, in the order of the flat buffer.
        numels: elements of each parameter.
        flat_numel: elements of the flat buffer, padding included.
        partition_numel: elements of each rank's partition.
        slices: parts of parameters, in the order of the flat buffer.
    """

    parameters: tuple[int, ...]
    numels: tuple[int, ...]
    flat_numel: int
    partition_numel: int
    slices: tuple[Slice, ...]

    def owned(self, rank: int) -> list[Slice]:
        """Slices in a rank's partition, in order."""
        return self._by_rank.get(rank, [])

    def key(self, rank: int) -> tuple[tuple[int, int], ...]:
        """Parameter and elements of each slice of a rank: what of its partition decides its memory."""
        return self._keys.get(rank, ())

    @cached_property
    def _keys(self) -> dict[int, tuple[tuple[int, int], ...]]:
        return {rank: tuple((piece.parameter, piece.numel) for piece in pieces)
                for rank, pieces in self._by_rank.items()}

    @cached_property
    def _by_rank(self) -> dict[int, list[Slice]]:
        return {rank: list(pieces) for rank, pieces in groupby(self.slices, key=attrgetter("rank"))}


@lru_cache(maxsize=16)
def partition(parameters: tuple[int, ...], numels: tuple[int, ...], degree: int, *,
              round_robin: bool = False) -> Group:
    """Lays out one group over ``degree`` ranks."""
    pairs = list(zip(parameters, numels))
    if round_robin:
        pairs = [pair for first in range(degree) for pair in pairs[first::degree]]
    total = sum(numels)
    alignment = NCCL_START_ALIGNMENT * degree
    flat = -(-total // alignment) * alignment
    size = flat // degree
    ends = np.cumsum([numel for _, numel in pairs])
    cuts = np.sort(np.concatenate([ends, size * np.arange(1, degree)]))  # np.union1d would import numpy.ma, 10 ms
    cuts = cuts[(cuts <= total) & (np.diff(cuts, prepend=-1) > 0)]
    starts = np.append(0, cuts[:-1])
    slices = map(Slice, [pairs[place][0] for place in np.searchsorted(ends, starts, side="right").tolist()],
                 (starts // size).tolist(), (cuts - starts).tolist())
    return Group(tuple(p for p, _ in pairs), tuple(n for _, n in pairs), flat, size, tuple(slices))
