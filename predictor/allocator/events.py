"""Deferred frees. A block that other streams used becomes free when the events recorded at its free are complete.

Source: insert_events, process_events and synchronize_and_free_events, CUDACachingAllocator.cpp, PyTorch 2.11.
The order of the streams makes no difference: free blocks merge to the same result.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from predictor.allocator.blocks import Block

if TYPE_CHECKING:
    from predictor.allocator.allocator import CachingAllocator


class OutstandingEvents:
    """Events that are not known to be complete: a queue for each stream, and the number that each block waits for."""

    __slots__ = ("queues", "counts")

    def __init__(self) -> None:
        self.queues: dict[int, deque[tuple[tuple[int, int], Block]]] = {}
        self.counts: dict[Block, int] = {}


def insert(allocator: CachingAllocator, block: Block, streams: set[int]) -> None:
    """Record an event on each stream that used the block."""
    event = allocator.clock.record()
    for stream in streams:
        allocator.outstanding.queues.setdefault(stream, deque()).append((event, block))
    allocator.outstanding.counts[block] = len(streams)


def process(allocator: CachingAllocator) -> None:
    """Free the blocks whose events are complete. Each queue is processed up to its first incomplete event."""
    queues, is_complete = allocator.outstanding.queues, allocator.clock.is_complete
    for stream in list(queues):
        queue = queues[stream]
        while queue and is_complete(queue[0][0]):
            _count_down(allocator, queue.popleft()[1])
        if not queue:
            del queues[stream]


def synchronize_and_free(allocator: CachingAllocator) -> None:
    """Wait for every event, and free the blocks that waited."""
    queues = allocator.outstanding.queues
    if not queues:
        return
    allocator.clock.synchronizations += 1
    for queue in queues.values():
        for _, block in queue:
            _count_down(allocator, block)
    queues.clear()


def _count_down(allocator: CachingAllocator, block: Block) -> None:
    counts = allocator.outstanding.counts
    counts[block] -= 1
    if not counts[block]:
        del counts[block]
        allocator.free_completed(block)


def complete(allocator: CachingAllocator, block: Block) -> None:
    """Free a block that waits, as if its own events were complete. Does nothing if it waits for none."""
    if block not in allocator.outstanding.counts:
        return
    queues = allocator.outstanding.queues
    for stream in list(queues):
        queues[stream] = deque(entry for entry in queues[stream] if entry[1] is not block)
        if not queues[stream]:
            del queues[stream]
    del allocator.outstanding.counts[block]
    allocator.free_completed(block)
