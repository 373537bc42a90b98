"""Runs a list of events through the simulated allocator and reports the peak and the first failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from predictor.allocator import compiled
from predictor.allocator.allocator import CachingAllocator
from predictor.allocator.blocks import Block
from predictor.allocator.completion import launches_until_complete
from predictor.allocator.constants import UNLIMITED
from predictor.allocator.driver import SimulatedDriver, reported_bytes
from predictor.allocator.out_of_memory import OutOfMemory
from predictor.allocator.settings import AllocatorSettings, garbage_limit, memory_limit
from predictor.events.events import EventType

WITHOUT_BUFFER: dict[int, Callable[[CachingAllocator], None]] = {
    EventType.EMPTY_CACHE: CachingAllocator.empty_cache, EventType.SYNCHRONIZE: CachingAllocator.synchronize}
"""Type of an event that concerns no buffer -> the allocator's method."""


@dataclass(frozen=True)
class Columns:
    """The events of a run as the allocator sees them.

    Attributes:
        kinds: ``int8[m]``, the type of each event, a value of :class:`predictor.events.events.EventType`.
        buffers: ``int32[m]``, the buffer of each event, as an index.
        sizes: ``int64[n]``, bytes of every buffer. A buffer of 0 bytes is not allocated, as in PyTorch.
        streams: ``int[n]``, the stream of every buffer.
    """

    kinds: np.ndarray
    buffers: np.ndarray
    sizes: np.ndarray
    streams: np.ndarray


@dataclass(frozen=True)
class Device:
    """The allocator and the memory that a run gets.

    Attributes:
        settings: settings of the allocator.
        limit_bytes: bytes that PyTorch can reserve; None for no limit.
        total_bytes: total memory that the GPU reports; None for ``limit_bytes``.
        completion: when events of deferred frees complete, as for :class:`predictor.allocator.CachingAllocator`.
    """

    settings: AllocatorSettings
    limit_bytes: int | None = None
    total_bytes: int | None = None
    completion: str = "immediate"

    @property
    def reported_bytes(self) -> int:
        """The memory that the GPU reports, also where none is given."""
        return reported_bytes(self.limit_bytes, self.total_bytes)

    @property
    def allowed_bytes(self) -> int | None:
        """The limit that the settings' memory fraction sets; None without one."""
        return memory_limit(self.settings.per_process_memory_fraction, self.reported_bytes)

    def allocator(self) -> CachingAllocator:
        """An empty allocator of this device."""
        driver = SimulatedDriver(self.limit_bytes, self.total_bytes, self.settings.address_step_bytes)
        return CachingAllocator(self.settings, driver, self.completion)


@dataclass(frozen=True)
class Simulation:
    """The result of running a list of events; bytes.

    Attributes:
        peak_requested_bytes: the most bytes that buffers asked for at once.
        peak_allocated_bytes: ``torch.cuda.max_memory_allocated``.
        peak_reserved_bytes: ``torch.cuda.max_memory_reserved``.
        reserved_bytes: reserved bytes after the last event.
        peak_at: index of the event with the most allocated bytes (the first of equals).
        reserved_at_peak_bytes: reserved bytes after that event.
        refused: whether the driver refused a segment or a page, at least for the first time.
        failed_at: index of the event that ran out of memory; None if none did.
        out_of_memory: the error of that event.
    """

    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    reserved_bytes: int
    peak_at: int
    reserved_at_peak_bytes: int
    refused: bool
    failed_at: int | None = None
    out_of_memory: OutOfMemory | None = None


def events_per_second(events: int) -> int:
    """About how many events one core simulates in a second, of a list of so many (``pytest tests/test_speed.py``).

    The blocks of long lists do not stay in the processor's cache.
    """
    return 1_000_000 if not compiled.is_available() else 25_000_000 if events < 1 << 20 else 10_000_000


def simulate(events: Columns, device: Device) -> Simulation:
    """Runs events through an empty allocator until they end or one runs out of memory.

    Raises:
        InputError: they need more addresses than a GPU has.
    """
    result, counters = _compiled(events, device)
    if result == compiled.FAILED:
        return play(events.kinds.tolist(), events, device.allocator())
    error = None
    if result == compiled.OUT_OF_MEMORY:
        error = OutOfMemory(
            tried_to_allocate_bytes=counters.tried, requested_bytes=counters.failed_request,
            allocated_bytes=counters.allocated, reserved_bytes=counters.reserved,
            free_bytes=None if device.limit_bytes is None else device.limit_bytes - counters.used,
            allowed_bytes=device.allowed_bytes)
    return Simulation(
        counters.peak_requested, counters.peak_allocated, counters.peak_reserved, counters.reserved, counters.peak_at,
        counters.reserved_at_peak, counters.refusals > 0, counters.failed_at if error else None, error)


def highest_held(events: Columns, device: Device, ends: np.ndarray) -> np.ndarray:
    """Runs events as :func:`simulate` does, and tells the highest bytes after the events of each stretch of them.

    From an event that runs out of memory on, bytes stay as they are.

    Args:
        ends: the event after each stretch, in order; the last is the number of events.

    Returns:
        ``int64[2, n]``: of blocks and of segments.
    """
    ends = np.ascontiguousarray(ends, np.int64)
    highest = np.zeros((2, len(ends)), np.int64)
    curve = compiled.Curve(ends.ctypes.data, *(row.ctypes.data for row in highest))
    result, counters = _compiled(events, device, curve)
    if result == compiled.FAILED:
        return _highest_by_reference(events, device.allocator(), ends)
    if result == compiled.OUT_OF_MEMORY:
        stay = highest[:, np.searchsorted(ends, counters.failed_at, "right") :]
        np.maximum(stay, [[counters.allocated], [counters.reserved]], out=stay)
    return highest


def play(kinds: Iterable[int], events: Columns, allocator: CachingAllocator) -> Simulation:
    """Runs events through a given allocator, which is changed. This is the reference for :func:`simulate`.

    Args:
        kinds: yields ``events.kinds`` one by one. It may look at the allocator in between.
    """
    malloc, free = allocator.malloc, allocator.free
    buffers, sizes, streams = events.buffers.tolist(), events.sizes.tolist(), events.streams.tolist()
    blocks: dict[int, Block] = {}
    peak = peak_at = reserved_at_peak = 0
    failed_at = error = None
    for index, (kind, buffer) in enumerate(zip(kinds, buffers)):
        size = sizes[buffer]
        if kind == -1:
            if size:
                free(blocks.pop(buffer))
        elif kind == 1:
            if not size:
                continue
            try:
                blocks[buffer] = malloc(size, streams[buffer])
            except OutOfMemory as out_of_memory:
                failed_at, error = index, out_of_memory
                break
            if allocator.peak_allocated_bytes > peak:
                peak, peak_at, reserved_at_peak = allocator.peak_allocated_bytes, index, allocator.reserved_bytes
        elif kind < EventType.RECORD_STREAM:
            WITHOUT_BUFFER[kind](allocator)
        elif size:
            allocator.record_stream(blocks[buffer], kind - EventType.RECORD_STREAM)
    refusals = allocator.driver.refusals if isinstance(allocator.driver, SimulatedDriver) else 0
    return Simulation(
        allocator.peak_requested_bytes, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes,
        allocator.reserved_bytes, peak_at, reserved_at_peak, refusals > 0, failed_at, error)


def _highest_by_reference(events: Columns, allocator: CachingAllocator, ends: np.ndarray) -> np.ndarray:
    held: list[tuple[int, int]] = []

    def told() -> Iterator[int]:
        for kind in events.kinds.tolist():
            held.append((allocator.allocated_bytes, allocator.reserved_bytes))  # after the event before
            yield kind

    play(told(), events, allocator)
    held += [(allocator.allocated_bytes, allocator.reserved_bytes)] * (len(events.kinds) + 1 - len(held))
    return np.maximum.reduceat(np.array(held[1:], np.int64), [0, *ends[:-1]]).T


def _compiled(events: Columns, device: Device,
              curve: compiled.Curve | None = None) -> tuple[int, compiled.Counters]:
    return compiled.run(compiled_settings(device), events.kinds, events.buffers, events.sizes, events.streams, curve)


def compiled_settings(device: Device) -> compiled.Settings:
    """The settings and limits of a device, for the compiled allocator."""
    settings = device.settings
    limits = (device.limit_bytes, device.reported_bytes, device.allowed_bytes,
              garbage_limit(settings.garbage_collection_threshold, device.allowed_bytes))
    return compiled.Settings(
        settings.large_segment_size_bytes,
        compiled.NONE if settings.max_split_size_bytes == UNLIMITED else settings.max_split_size_bytes,
        settings.max_non_split_rounding_bytes, settings.roundup_power2_divisions,
        max(settings.roundup_power2_divisions) > 1, settings.expandable_segments,
        launches_until_complete(device.completion) == 0,
        *(compiled.NONE if limit is None else limit for limit in limits), settings.address_step_bytes)
