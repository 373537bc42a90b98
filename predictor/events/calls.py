"""Groups the events of a list into operator calls, with the allocations and the result size of each call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from predictor.events.events import FACTORS, EventList, Factor


class OperatorCall(NamedTuple):
    """Consecutive allocations of one operator in one module and moment.

    Attributes:
        operator: index into ``events.names``.
        module: index into ``events.names``.
        made: positions of the call's allocations in the list; allocations of 0 bytes are left out.
        result_bytes: bytes of the largest buffer that is not one of the call's own temporaries
            (:func:`own_temporaries`); of the largest buffer if all are.
        temporary: the buffer that contains the library's workspace; None if the call has no such buffer. It is the
            last buffer that the call allocates and frees before another call allocates: PyTorch allocates a workspace
            after the results, and the last workspace of a call holds everything that the library requests at once
            (run_cudnn_SDP_bprop, ATen/native/cudnn/MHA.cpp, 2.11).
    """

    operator: int
    module: int
    made: tuple[int, ...]
    result_bytes: int
    temporary: int | None


def calls(events: EventList, row_bytes: np.ndarray) -> list[OperatorCall]:
    """All calls of a list, in order; ``row_bytes`` has the bytes of each size row."""
    buffers, sizes = events.buffers, row_bytes[events.size_row]
    allocations = np.flatnonzero((events.sign > 0) & (sizes > 0))
    buffer = events.buffer[allocations]
    keys = np.stack([buffers.operator[buffer], buffers.module[buffer], events.moment[allocations],
                     events.step[allocations]])
    starts = np.flatnonzero((np.diff(keys, prepend=-1) != 0).any(axis=0))
    died = np.full(len(buffers), len(events))
    freed = np.flatnonzero(events.sign < 0)
    died[events.buffer[freed]] = freed
    own = own_temporaries(buffers.factor[buffer], allocations, died[buffer], starts, len(events))
    result_bytes = largest_results(sizes[allocations], own, starts)
    last = np.maximum.reduceat(np.where(own, np.arange(len(allocations)), -1), starts) if len(starts) else starts
    temporary = [int(buffer[place]) if place >= 0 else None for place in last.tolist()]
    places, ends = allocations.tolist(), np.append(starts[1:], len(allocations))
    columns = (column.tolist() for column in (keys[0, starts], keys[1, starts], starts, ends, result_bytes))
    return [OperatorCall(operator, module, tuple(places[start:end]), size, workspace)
            for (operator, module, start, end, size), workspace in zip(zip(*columns), temporary)]


def own_temporaries(factor: np.ndarray, born: np.ndarray, died: np.ndarray, starts: np.ndarray, end: int
                    ) -> np.ndarray:
    """``bool[n]``: True for temporaries that are freed before another call allocates anything.

    Args:
        factor: index into :data:`predictor.events.events.FACTORS`, for each of ``n`` allocations in order.
        born: positions of the allocations.
        died: positions of the frees; ``end`` where a buffer is never freed.
        starts: index of each call's first allocation.
        end: the position after the last event.
    """
    ended = np.append(born, end)[np.append(starts[1:], len(born))]
    allocations_per_call = np.diff(np.append(starts, len(born)))
    return (factor == FACTORS.index(Factor.TEMPORARIES)) & (died < np.repeat(ended, allocations_per_call))


def largest_results(sizes: np.ndarray, own: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """``int64[calls]``: ``OperatorCall.result_bytes``, from the bytes of all allocations and the mask of own
    temporaries."""
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    results = np.maximum.reduceat(np.where(own, 0, sizes), starts)
    return np.where(results > 0, results, np.maximum.reduceat(sizes, starts))
