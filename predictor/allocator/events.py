"""Deferred frees. A block that other streams used becomes free when the events recorded at its free are complete.

Source: insert_events, process_events and synchronize_and_free_events, CUDACachingAllocator.cpp, PyTorch 2.11.
The order of the streams makes no difference: free blocks merge to the same result.
"""

from __future__ import annotations

from collections import deque

from predictor.allocator.blocks import Block
from predictor.allocator.completion import Clock


class OutstandingEvents:
    """Events that are not known to be complete: a queue for each stream, and the number that each block waits for.

    The methods that return blocks return those that wait for no event any more; the caller frees them.
    """

    __slots__ = ("clock", "queues", "counts")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.queues: dict[int, deque[tuple[tuple[int, int], Block]]] = {}
        self.counts: dict[Block, int] = {}

    def insert(self, block: Block, streams: set[int]) -> None:
        """Record an event on each stream that used the block."""
        event = self.clock.record()
        for stream in streams:
            self.queues.setdefault(stream, deque()).append((event, block))
        self.counts[block] = len(streams)

    def completed(self) -> list[Block]:
        """The blocks whose events are complete. Each queue is processed up to its first incomplete event."""
        blocks = []
        queues, is_complete = self.queues, self.clock.is_complete
        for stream in list(queues):
            queue = queues[stream]
            while queue and is_complete(queue[0][0]):
                block = queue.popleft()[1]
                if self._is_last(block):
                    blocks.append(block)
            if not queue:
                del queues[stream]
        return blocks

    def waited_for(self) -> list[Block]:
        """Waits for every event. Returns the blocks that waited."""
        if not self.queues:
            return []
        self.clock.synchronizations += 1
        blocks = [block for queue in self.queues.values() for _, block in queue if self._is_last(block)]
        self.queues.clear()
        return blocks

    def forget(self, block: Block) -> bool:
        """Removes the events of a block. False if it waits for none."""
        if block not in self.counts:
            return False
        for stream in list(self.queues):
            self.queues[stream] = deque(entry for entry in self.queues[stream] if entry[1] is not block)
            if not self.queues[stream]:
                del self.queues[stream]
        del self.counts[block]
        return True

    def _is_last(self, block: Block) -> bool:
        """Counts one event of a block as complete. True if it was the block's last one."""
        self.counts[block] -= 1
        if self.counts[block]:
            return False
        del self.counts[block]
        return True
