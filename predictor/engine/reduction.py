"""When ZeRO-2 reduces which gradients during backward, and what that allocates: the same on every rank
but for the partition buffer.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: ``setup_buckets``,
``reduce_independent_p_g_buckets_and_remove_grads``, ``reduce_ipg_grads``, ``average_tensor``,
``allreduce_and_scatter``, ``allreduce_no_retain``, ``buffered_reduce_fallback``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from predictor.engine.partition import Group
from predictor.workload.deepspeed_config import ZeroConfig

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


class Flush(NamedTuple):
    """One reduction of pending gradients.

    Attributes:
        before: row of ``ready`` in whose hook it happens; None at the end of backward.
        rows: rows of ``ready`` whose gradients are reduced, oldest first.
        extra_large: whether it is a single gradient larger than the bucket, never copied into it.
        copies: for each collective, the bytes that live during it (flattened, then converted); none
            where it works on the gradients where they are.
    """

    before: int | None
    rows: tuple[int, ...]
    extra_large: bool
    copies: tuple[tuple[int, ...], ...]


def flushes(parameters: Sequence[int], numels: Sequence[int], groups: Sequence[Group], zero: ZeroConfig) -> list[Flush]:
    """All reductions of one backward pass.

    Args:
        parameters: parameter of each row of ``ready``, in the order gradients arrive.
        numels: its elements.
        groups: layout of the optimizer groups.
    """
    owners = {parameter: list(pieces) for group in groups
              for parameter, pieces in groupby(group.slices, key=attrgetter("parameter"))}
    result, pending, elements = [], [], 0

    def flush(before: int | None) -> None:
        rows = tuple(pending)
        extra_large = len(rows) == 1 and numels[rows[0]] > zero.reduce_bucket_size
        result.append(Flush(before, rows, extra_large and zero.contiguous_gradients, _copies(
            [owners[parameters[row]] for row in rows], [numels[row] for row in rows], zero)))

    for row, numel in enumerate(numels):
        if elements + numel > zero.reduce_bucket_size:
            if pending:
                flush(row)
            pending, elements = [], 0
        pending.append(row)
        elements += numel
    if pending:
        flush(None)
    return result


def _copies(pieces: list, numels: list[int], zero: ZeroConfig) -> tuple[tuple[int, ...], ...]:
    """Bytes that each collective of a flush allocates."""
    own, other = BYTES[zero.dtype], BYTES[zero.communication_data_type]
    converted = 0 if zero.communication_data_type == zero.dtype else other
    if not zero.contiguous_gradients:
        return (_collective(numels, own, converted),)
    if not zero.reduce_scatter:
        return ((converted * sum(numels),) if converted else (),)
    if len(pieces) == len(pieces[0]) == 1:  # most are one slice of one owner
        return (_collective(numels, own, converted),)
    runs: list[list[int]] = []  # consecutive slices of one owner are one range
    for _, rank, numel in chain.from_iterable(pieces):
        if runs and runs[-1][0] == rank:
            runs[-1][1] += numel
        else:
            runs.append([rank, numel])
    lists: dict[int, list[int]] = {}
    for rank, numel in runs:
        lists.setdefault(0 if zero.use_multi_rank_bucket_allreduce else rank, []).append(numel)
    result = []
    for numels_of_list in lists.values():
        small: list[int] = []
        for numel in numels_of_list:
            small.append(numel)
            if sum(small) > zero.reduce_bucket_size:
                result.append(_collective(small, own, converted))
                small = []
        if small:
            result.append(_collective(small, own, converted))
    return tuple(result)


def _collective(numels: list[int], own: int, converted: int) -> tuple[int, ...]:
    """Of some ranges; ``own`` are a gradient's bytes an element, ``converted`` those it is reduced in, 0 for the same
    dtype. A single tensor is viewed, not copied."""
    total = sum(numels)
    flat = (own * total,) if len(numels) > 1 else ()
    return flat + ((converted * total,) if converted else ())
