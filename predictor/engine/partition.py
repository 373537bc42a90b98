"""How ZeRO cuts an optimizer group's flat buffer into one partition a rank.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: ``__init__`` (flattening, alignment),
``get_partition_info``, ``initialize_gradient_partition``, ``_round_robin_reorder``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

NCCL_START_ALIGNMENT = 2
"""``nccl_start_alignment_factor``: flat sizes are multiples of this times the degree, in elements."""


class Slice(NamedTuple):
    """Elements of one parameter that lie in one partition."""

    parameter: int
    rank: int
    numel: int


@dataclass(frozen=True)
class Group:
    """One optimizer group. Parameters are indices into the model's list, in flat order.

    Attributes:
        numels: elements of each parameter.
        flat_numel: padded size of the flat buffer.
        partition_numel: elements of each rank's partition.
        slices: cuts in flat order.
    """

    parameters: tuple[int, ...]
    numels: tuple[int, ...]
    flat_numel: int
    partition_numel: int
    slices: tuple[Slice, ...]

    def owned(self, rank: int) -> list[Slice]:
        """Slices in a rank's partition, in order."""
        return [s for s in self.slices if s.rank == rank]


def partition(parameters: Sequence[int], numels: Sequence[int], degree: int, *, round_robin: bool = False) -> Group:
    """Lay out one group over ``degree`` ranks."""
    pairs = list(zip(parameters, numels))
    if round_robin:
        pairs = [pair for first in range(degree) for pair in pairs[first::degree]]
    total = sum(numels)
    alignment = NCCL_START_ALIGNMENT * degree
    flat = -(-total // alignment) * alignment
    size = flat // degree
    slices = []
    for (parameter, numel), end in zip(pairs, accumulate(numel for _, numel in pairs)):
        start = end - numel
        for rank in range(start // size, -(-end // size)):
            slices.append(Slice(parameter, rank, min(end, (rank + 1) * size) - max(start, rank * size)))
    return Group(tuple(p for p, _ in pairs), tuple(n for _, n in pairs), flat, size, tuple(slices))
