"""ZeRO-2's reductions in backward: the gradients and the temporary copies of each.

They are equal on all ranks, except for the partition buffer. ``zero2_backward`` allocates the buckets.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: ``setup_buckets``,
``reduce_independent_p_g_buckets_and_remove_grads``, ``reduce_ipg_grads``, ``average_tensor``,
``allreduce_and_scatter``, ``allreduce_no_retain``, ``buffered_reduce_fallback``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from predictor.engine.zero_partition import Group, Slice
from predictor.workload.deepspeed_config import ZeroConfig

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


class Flush(NamedTuple):
    """One reduction of pending gradients.

    Attributes:
        before: row of ``MicroStep.ready`` in whose hook it happens; None at the end of backward.
        rows: rows of ``MicroStep.ready`` whose gradients are reduced, oldest first.
        extra_large: whether it reduces a single gradient that is larger than the bucket, so never copied into it.
        copies: for each collective, the bytes of its copies (flattened, then converted); empty where it works in place.
    """

    before: int | None
    rows: tuple[int, ...]
    extra_large: bool
    copies: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=16)
def flushes(parameters: tuple[int, ...], numels: tuple[int, ...], groups: tuple[Group, ...],
            zero: ZeroConfig) -> tuple[Flush, ...]:
    """All reductions of one backward pass.

    Args:
        parameters: parameter of each gradient, in the order in which gradients are ready.
        numels: elements of each gradient.
        groups: layout of the optimizer groups.
    """
    owners = {parameter: list(pieces) for group in groups
              for parameter, pieces in groupby(group.slices, key=attrgetter("parameter"))}
    result: list[Flush] = []
    pending: list[int] = []
    elements = 0

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
    return tuple(result)


def _copies(pieces: list[list[Slice]], numels: list[int], zero: ZeroConfig) -> tuple[tuple[int, ...], ...]:
    """Bytes of the copies of each collective of a flush."""
    own, other = BYTES[zero.dtype], BYTES[zero.communication_data_type]
    converted = 0 if zero.communication_data_type == zero.dtype else other
    if not zero.contiguous_gradients:
        return (_collective(numels, own, converted),)
    if not zero.reduce_scatter:
        return ((converted * sum(numels),) if converted else (),)
    if len(pieces) == len(pieces[0]) == 1:  # the usual case: one slice of one owner
        return (_collective(numels, own, converted),)
    ranges: dict[int, list[int]] = {}
    for rank, run in groupby(chain.from_iterable(pieces), key=attrgetter("rank")):  # a range: adjacent, of one owner
        together = 0 if zero.use_multi_rank_bucket_allreduce else rank
        ranges.setdefault(together, []).append(sum(piece.numel for piece in run))
    return tuple(_collective(small, own, converted) for numels_of_list in ranges.values()
                 for small in _small_buckets(numels_of_list, zero.reduce_bucket_size))


def _small_buckets(numels: list[int], limit: int) -> Iterator[list[int]]:
    """Splits ranges among collectives: a collective's ranges end where they exceed ``limit`` elements."""
    small: list[int] = []
    elements = 0
    for numel in numels:
        small.append(numel)
        elements += numel
        if elements > limit:
            yield small
            small, elements = [], 0
    if small:
        yield small


def _collective(numels: list[int], own: int, converted: int) -> tuple[int, ...]:
    """Bytes of the copies of one collective. A single tensor is viewed, not flattened.

    Args:
        numels: elements of its ranges.
        own: bytes of a gradient's element.
        converted: bytes of an element in the dtype of the reduction; 0 if it is the gradient's dtype.
    """
    total = sum(numels)
    flat = (own * total,) if len(numels) > 1 else ()
    return flat + ((converted * total,) if converted else ())
