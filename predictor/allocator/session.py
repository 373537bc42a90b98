"""A simulated allocator that lives through many lists of events, as the allocator of a training process does.

    session = Session(Device(AllocatorSettings(), limit_bytes=80 << 30))
    session.play(start_up)
    session.play(first_step)
    session.counters()

The compiled allocator does the work if this installation has it, else the Python modules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.allocator import compiled
from predictor.allocator.allocator import CachingAllocator
from predictor.allocator.blocks import Block
from predictor.allocator.driver import SimulatedDriver
from predictor.allocator.out_of_memory import OutOfMemory
from predictor.allocator.simulate import WITHOUT_BUFFER, Columns, Device, compiled_settings
from predictor.events.events import EventType


@dataclass(frozen=True)
class State:
    """The counters of a session, in bytes, and counts of calls of the driver.

    Attributes:
        peak_requested_bytes, peak_allocated_bytes, peak_reserved_bytes: since :meth:`Session.reset_peaks`.
        retries: how often the allocator released its cache because the driver refused (``num_alloc_retries``).
        granted, returned: segments (with expandable segments: ranges of pages) that the driver granted and got back.
    """

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    granted: int
    returned: int


@dataclass(frozen=True)
class Failure:
    """The event of a list that ran out of memory, by its index, with the error."""

    index: int
    error: OutOfMemory


class Session:
    """An allocator with the block of each buffer. Buffers keep their numbers from list to list."""

    def __init__(self, device: Device) -> None:
        self._allocator = _Compiled(device) if compiled.is_available() else _Reference(device)

    def play(self, events: Columns) -> Failure | None:
        """Runs events, up to the first that runs out of memory. After a failure the session must not go on.

        Raises:
            ValueError: a buffer is freed that is not allocated, or allocated twice.
        """
        return self._allocator.play(events)

    def state(self) -> State:
        """The counters now."""
        return self._allocator.state()

    def reset_peaks(self) -> None:
        """``torch.cuda.reset_peak_memory_stats``."""
        self._allocator.reset_peaks()


class _Compiled:
    def __init__(self, device: Device) -> None:
        self._device, self._session = device, compiled.Session(compiled_settings(device))

    def play(self, events: Columns) -> Failure | None:
        columns = [np.ascontiguousarray(column, dtype) for column, dtype in (
            (events.kinds, np.int8), (events.buffers, np.int32), (events.sizes, np.int64), (events.streams, np.int32))]
        result = self._session.play(*columns)
        if result == compiled.COMPLETED:
            return None
        if result == compiled.FAILED:
            raise ValueError("the events free a buffer that is not allocated, or allocate one twice")
        counters, limit = self._session.counters, self._device.limit_bytes
        return Failure(counters.failed_at, OutOfMemory(
            tried_to_allocate_bytes=counters.tried, requested_bytes=counters.failed_request,
            allocated_bytes=counters.allocated, reserved_bytes=counters.reserved,
            free_bytes=None if limit is None else limit - counters.used, allowed_bytes=self._device.allowed_bytes))

    def state(self) -> State:
        counters = self._session.counters
        return State(counters.requested, counters.allocated, counters.reserved, counters.peak_requested,
                     counters.peak_allocated, counters.peak_reserved, counters.retries, counters.grants,
                     counters.returns)

    def reset_peaks(self) -> None:
        counters = self._session.counters
        counters.peak_requested, counters.peak_allocated = counters.requested, counters.allocated
        counters.peak_reserved = counters.reserved


class _Reference:
    """The same by the Python modules."""

    def __init__(self, device: Device) -> None:
        self._calls = {1: 0, -1: 0}
        self._allocator = CachingAllocator(
            device.settings, SimulatedDriver(device.limit_bytes, device.total_bytes), device.completion, self._observe)
        self._blocks: dict[int, Block] = {}

    def _observe(self, action: str, address: int, size: int, stream: int) -> None:
        self._calls[1 if action in ("segment_alloc", "segment_map") else -1] += 1

    def play(self, events: Columns) -> Failure | None:
        allocator, blocks = self._allocator, self._blocks
        sizes, streams = events.sizes.tolist(), events.streams.tolist()
        for index, (kind, buffer) in enumerate(zip(events.kinds.tolist(), events.buffers.tolist())):
            if kind in WITHOUT_BUFFER:
                WITHOUT_BUFFER[kind](allocator)
            elif not sizes[buffer]:
                continue
            elif (buffer in blocks) is (kind == EventType.ALLOCATE):
                raise ValueError("the events free a buffer that is not allocated, or allocate one twice")
            elif kind == EventType.FREE:
                allocator.free(blocks.pop(buffer))
            elif kind >= EventType.RECORD_STREAM:
                allocator.record_stream(blocks[buffer], kind - EventType.RECORD_STREAM)
            else:
                try:
                    blocks[buffer] = allocator.malloc(sizes[buffer], streams[buffer])
                except OutOfMemory as error:
                    return Failure(index, error)
        return None

    def state(self) -> State:
        allocator = self._allocator
        return State(allocator.requested_bytes, allocator.allocated_bytes, allocator.reserved_bytes,
                     allocator.peak_requested_bytes, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes,
                     allocator.num_alloc_retries, self._calls[1], self._calls[-1])

    def reset_peaks(self) -> None:
        allocator = self._allocator
        allocator.peak_requested_bytes, allocator.peak_allocated_bytes = \
            allocator.requested_bytes, allocator.allocated_bytes
        allocator.peak_reserved_bytes = allocator.reserved_bytes
