"""A simulated allocator that records a memory history like PyTorch's.

    allocator = RecordingAllocator(settings, driver)
    allocator.tag = tag                      # the tag of the following entries
    block = allocator.malloc(size, stream)
    allocator.free(block)
    write(path, allocator.snapshot())
"""

from __future__ import annotations

from typing import Any

from predictor.allocator import AllocatorSettings, Block, CachingAllocator, Driver, OutOfMemory
from predictor.allocator.blocks import PENDING
from predictor.allocator.sizes import round_to_division
from predictor.events.events import Tag
from predictor.snapshot.records import Action
from predictor.snapshot.writer import Entry, allocator_settings, snapshot_of


class RecordingAllocator(CachingAllocator):
    """Records the same entries as PyTorch, in its order (``record_trace``, c10/cuda/CUDACachingAllocator.cpp, 2.11).

    Attributes:
        entries: the history so far.
        tag: the tag of the next allocations. A free gets the tag of its allocation.
    """

    def __init__(self, settings: AllocatorSettings | None = None, driver: Driver | None = None,
                 completion: str = "immediate") -> None:
        self.entries: list[Entry] = []
        self.tag: Tag | None = None
        self._tags: dict[int, Tag | None] = {}
        self._completing = False
        super().__init__(settings, driver, completion, observer=self._segment)

    def malloc(self, size: int, stream: int = 0) -> Block:
        """Does :meth:`CachingAllocator.malloc` and records the allocation or its failure."""
        try:
            block = super().malloc(size, stream)
        except OutOfMemory as error:
            rounded = round_to_division(size, self.settings.roundup_power2_divisions)
            self.entries.append(Entry(Action.OOM, error.free_bytes or 0, rounded, stream, self.tag))
            raise
        self._tags[block.address] = self.tag
        self.entries.append(Entry(Action.ALLOC, block.address, size, stream, self.tag))
        return block

    def free(self, block: Block) -> None:
        """Does :meth:`CachingAllocator.free`; records it as requested and, unless other streams use it, completed."""
        if self._completing:
            return super().free(block)
        address, size, stream = block.address, block.requested, block.arena.stream
        super().free(block)
        if block.state != PENDING:
            self._note_free(Action.FREE_REQUESTED, address, size, stream)
            self._note_free(Action.FREE_COMPLETED, address, size, stream)

    def free_requested(self, block: Block) -> None:
        """Does :meth:`CachingAllocator.free_requested` and records it."""
        super().free_requested(block)
        self._note_free(Action.FREE_REQUESTED, block.address, block.requested, block.arena.stream)

    def free_completed(self, block: Block) -> None:
        """Does :meth:`CachingAllocator.free_completed` and records it."""
        self._note_free(Action.FREE_COMPLETED, block.address, block.requested, block.arena.stream)
        self._completing = True
        try:
            super().free_completed(block)
        finally:
            self._completing = False

    def snapshot(self, device: int = 0) -> dict[str, Any]:
        """The dictionary that ``torch.cuda.memory._snapshot()`` would return now."""
        return snapshot_of(self.snapshot_segments(), self.entries, device=device,
                           settings=allocator_settings(self.settings), total_bytes=self.driver.total_bytes)

    def _note_free(self, action: Action, address: int, size: int, stream: int) -> None:
        self.entries.append(Entry(action, address, size, stream, self._tags.get(address)))

    def _segment(self, action: str, address: int, size: int, stream: int) -> None:
        self.entries.append(Entry(Action[action.upper()], address, size, stream))
