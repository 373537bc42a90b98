"""Evaluates a composed run at one shape: the bytes of every buffer, and the running sum of live bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.events import timeline
from predictor.events.events import EventList
from predictor.events.sizes import Shape

LARGEST_BUFFER_BYTES = 1 << 46
"""Above this size, sums of buffers could overflow 64 bits."""


@dataclass(frozen=True, eq=False)
class Run:
    """A composed run of one rank at one shape.

    Attributes:
        row_bytes: ``int64[rows]``, bytes of every size row.
        live: ``int64[events]``, live bytes after each event.
    """

    events: EventList
    rank: int
    row_bytes: np.ndarray
    live: np.ndarray

    @property
    def peak(self) -> int:
        """Peak requested bytes."""
        return int(self.live.max())


def evaluate(events: EventList, rank: int, shape: Shape, gpu: Gpu,
             coefficients: tuple[float, ...] | None = None) -> Run:
    """Evaluates a composed run at a shape.

    Args:
        coefficients: multiplies the bytes of each factor, in the order of ``FACTORS``; None leaves them unchanged.

    Raises:
        InputError: a buffer is larger than :data:`LARGEST_BUFFER_BYTES`.
    """
    row_bytes = sizes_at(events, shape, gpu)
    if coefficients is not None:  # the table of size rows is repeated for each factor
        size = events.buffers.size + len(row_bytes) * events.buffers.factor.astype(np.int32)
        events = replace(events, buffers=replace(events.buffers, size=size))
        row_bytes = np.rint(np.outer(coefficients, row_bytes)).astype(np.int64).ravel()
    return Run(events, rank, row_bytes, timeline.running_sum(events, row_bytes))


def sizes_at(events: EventList, shape: Shape, gpu: Gpu) -> np.ndarray:
    """``int64[rows]``: bytes of every size row at a shape.

    Raises:
        InputError: a row is larger than :data:`LARGEST_BUFFER_BYTES`.
    """
    if events.sizes.largest(shape, gpu) > LARGEST_BUFFER_BYTES:
        raise InputError(f"one buffer alone would take more than {LARGEST_BUFFER_BYTES >> 40} TiB: "
                         "give a smaller batch, sequence or model")
    return events.sizes.at(shape, gpu)
