"""A list of events run through the allocator: what it peaks at, and where it fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from predictor.allocator.allocator import CachingAllocator
from predictor.allocator.out_of_memory import OutOfMemory
from predictor.events.events import Kind

OF_NO_BUFFER = {Kind.EMPTY_CACHE: CachingAllocator.empty_cache, Kind.SYNCHRONIZE: CachingAllocator.synchronize}
"""Kind of an event that concerns no buffer -> what the allocator does."""


@dataclass(frozen=True)
class Simulation:
    """What became of a list of events; bytes.

    Attributes:
        peak_at: event at which allocated bytes were highest (the first of equals).
        reserved_at_peak_bytes: reserved bytes when allocated ones were highest.
        failed_at: event that ran out of memory; None if all is well.
        out_of_memory: what was asked for then.
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
        kinds: of the events, as :class:`predictor.events.events.Kind` says.
        buffers: the buffer that each event concerns.
        sizes: bytes of every buffer; one of none is not allocated, as in PyTorch.
        streams: the stream of every buffer.
    """
    malloc, free, blocks = allocator.malloc, allocator.free, {}
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
        elif kind < Kind.RECORD_STREAM:
            OF_NO_BUFFER[kind](allocator)
        elif size:
            allocator.record_stream(blocks[buffer], kind - Kind.RECORD_STREAM)
    return Simulation(allocator, peak_at, reserved_at_peak)
