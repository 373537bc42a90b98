"""A composed run with numbers: the bytes of every buffer at one shape, and their running sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.events import timeline
from predictor.events.events import EventList
from predictor.events.sizes import Shape

LARGEST_BUFFER_BYTES = 1 << 46
"""Beyond it sums of buffers could leave 64 bits."""


@dataclass(frozen=True, eq=False)
class Run:
    """A composed run of one rank at one shape, with its sizes and running sum in bytes."""

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
    """Put numbers to a composed run; ``coefficients`` multiply the bytes of each of ``FACTORS``."""
    row_bytes = sizes_at(events, shape, gpu)
    if coefficients is not None:  # a size row for each factor
        size = events.buffers.size + len(row_bytes) * events.buffers.factor.astype(np.int32)
        events = replace(events, buffers=replace(events.buffers, size=size))
        row_bytes = np.rint(np.outer(coefficients, row_bytes)).astype(np.int64).ravel()
    return Run(events, rank, row_bytes, timeline.running_sum(events, row_bytes))


def sizes_at(events: EventList, shape: Shape, gpu: Gpu) -> np.ndarray:
    """Bytes of every size row at a shape.

    Raises:
        InputError: one of them is beyond :data:`LARGEST_BUFFER_BYTES`.
    """
    if events.sizes.largest(shape, gpu) > LARGEST_BUFFER_BYTES:
        raise InputError(f"one buffer alone would take more than {LARGEST_BUFFER_BYTES >> 40} TiB: "
                         "give a smaller batch, sequence or model")
    return events.sizes.at(shape, gpu)
