"""Calls of operators in a list of events: what they allocate, and how large their result is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from predictor.events.events import FACTORS, EventList, Factor


class Call(NamedTuple):
    """A stretch of allocations of one operator in one module and moment, nothing else allocated between.

    Attributes:
        operator: row of ``events.names``, with ``module``.
        made: positions of its allocations, none of no bytes.
        result_bytes: of its largest buffer that is more than a temporary of its own; of its largest one if all are.
        temporary: the buffer that a workspace of its library would be part of; None if it has none. That is the last
            one that it allocates and frees before anything else is allocated: PyTorch allocates a workspace when the
            results are there, and a call's last one holds what the library asks for at once (run_cudnn_SDP_bprop,
            ATen/native/cudnn/MHA.cpp, 2.11).
    """

    operator: int
    module: int
    made: tuple[int, ...]
    result_bytes: int
    temporary: int | None


def calls(events: EventList, row_bytes: np.ndarray) -> list[Call]:
    """All calls, in order; ``row_bytes`` are the bytes of each size row."""
    buffers, sizes = events.buffers, row_bytes[events.buffers.size[events.buffer]]
    made = np.flatnonzero((events.sign > 0) & (sizes > 0))
    buffer = events.buffer[made]
    keys = np.stack([buffers.operator[buffer], buffers.module[buffer], events.moment[made], events.step[made]])
    starts = np.flatnonzero((np.diff(keys, prepend=-1) != 0).any(axis=0))
    died = np.full(len(buffers), len(events))
    freed = np.flatnonzero(events.sign < 0)
    died[events.buffer[freed]] = freed
    own = own_temporaries(buffers.factor[buffer], made, died[buffer], starts, len(events))
    result_bytes = largest_results(sizes[made], own, starts)
    last = np.maximum.reduceat(np.where(own, np.arange(len(made)), -1), starts) if len(starts) else starts
    temporary = [int(buffer[place]) if place >= 0 else None for place in last.tolist()]
    places, ends = made.tolist(), np.append(starts[1:], len(made))
    columns = (column.tolist() for column in (keys[0, starts], keys[1, starts], starts, ends, result_bytes))
    return [Call(operator, module, tuple(places[start:end]), size, workspace)
            for (operator, module, start, end, size), workspace in zip(zip(*columns), temporary)]


def own_temporaries(factor: np.ndarray, born: np.ndarray, died: np.ndarray, starts: np.ndarray, end: int
                    ) -> np.ndarray:
    """``bool[n]``: which allocations are temporaries that are freed before another call allocates anything.

    Args:
        factor: of ``n`` allocations in order, index into :data:`predictor.events.events.FACTORS`.
        born, died: when each comes and goes; never freed: ``end``.
        starts: the first allocation of each call.
        end: behind the last event.
    """
    ended = np.append(born, end)[np.append(starts[1:], len(born))]
    each = np.diff(np.append(starts, len(born)))
    return (factor == FACTORS.index(Factor.TEMPORARIES)) & (died < np.repeat(ended, each))


def largest_results(sizes: np.ndarray, own: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """``int64[calls]``: ``Call.result_bytes`` from the sizes of allocations and which of them are its temporaries."""
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    results = np.maximum.reduceat(np.where(own, 0, sizes), starts)
    return np.where(results > 0, results, np.maximum.reduceat(sizes, starts))
