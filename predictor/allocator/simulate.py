"""Runs a list of events through the simulated allocator and reports the peak and the first failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from predictor.allocator.allocator import CachingAllocator
from predictor.allocator.blocks import Block
from predictor.allocator.out_of_memory import OutOfMemory
from predictor.events.events import EventType

_WITHOUT_BUFFER: dict[int, Callable[[CachingAllocator], None]] = {
    EventType.EMPTY_CACHE: CachingAllocator.empty_cache, EventType.SYNCHRONIZE: CachingAllocator.synchronize}
"""Type of an event that concerns no buffer -> the allocator's method."""


@dataclass(frozen=True)
class Simulation:
    """The result of running a list of events.

    Attributes:
        allocator: the allocator after the last event.
        peak_at: index of the event with the most allocated bytes (the first of equals).
        reserved_at_peak_bytes: reserved bytes after that event.
        failed_at: index of the event that ran out of memory; None if none did.
        out_of_memory: the error of that event.
    """

    allocator: CachingAllocator
    peak_at: int
    reserved_at_peak_bytes: int
    failed_at: int | None = None
    out_of_memory: OutOfMemory | None = None

    @property
    def peak_allocated_bytes(self) -> int:
        """``torch.cuda.max_memory_allocated``."""
        return self.allocator.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """``torch.cuda.max_memory_reserved``."""
        return self.allocator.peak_reserved_bytes


def simulate(kinds: Iterable[int], buffers: Sequence[int], sizes: Sequence[int], streams: Sequence[int],
             allocator: CachingAllocator) -> Simulation:
    """Run events through an allocator until they end or one runs out of memory.

    Args:
        kinds: the type of each event, a value of :class:`predictor.events.events.EventType`.
        buffers: the buffer of each event, as an index.
        sizes: bytes of every buffer. A buffer of 0 bytes is not allocated, as in PyTorch.
        streams: the stream of every buffer.
        allocator: an empty or a seeded allocator; it is changed.
    """
    malloc, free = allocator.malloc, allocator.free
    blocks: dict[int, Block] = {}
    peak = peak_at = reserved_at_peak = 0
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
            except OutOfMemory as error:
                return Simulation(allocator, peak_at, reserved_at_peak, index, error)
            if allocator.peak_allocated_bytes > peak:
                peak, peak_at, reserved_at_peak = allocator.peak_allocated_bytes, index, allocator.reserved_bytes
        elif kind < EventType.RECORD_STREAM:
            _WITHOUT_BUFFER[kind](allocator)
        elif size:
            allocator.record_stream(blocks[buffer], kind - EventType.RECORD_STREAM)
    return Simulation(allocator, peak_at, reserved_at_peak)


def held_bytes(kinds: Sequence[int], buffers: Sequence[int], sizes: Sequence[int], streams: Sequence[int],
               allocator: CachingAllocator) -> tuple[list[int], list[int]]:
    """Runs events as :func:`simulate` does. Returns the bytes of blocks and of segments after each of them.

    From an event that runs out of memory on, they stay as they are.
    """
    held: list[tuple[int, int]] = []

    def told() -> Iterator[int]:
        for kind in kinds:
            held.append((allocator.allocated_bytes, allocator.reserved_bytes))  # after the event before
            yield kind

    simulate(told(), buffers, sizes, streams, allocator)
    held += [(allocator.allocated_bytes, allocator.reserved_bytes)] * (len(kinds) + 1 - len(held))
    allocated, reserved = zip(*held[1:]) if kinds else ((), ())
    return list(allocated), list(reserved)
