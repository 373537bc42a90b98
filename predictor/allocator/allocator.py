"""PyTorch's native CUDA caching allocator as a deterministic simulation.

Source: DeviceCachingAllocator, c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11. Not simulated: CUDA graphs,
user pools (torch.cuda.MemPool), several devices. A job calls ``malloc`` and ``free`` all the time, so both are written
for speed. ``free`` is in the state; rare operations are in the other modules of this package.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from predictor.allocator import expandable, release, state_records
from predictor.allocator.blocks import ADDRESS_BITS, ALLOCATED, FREE, Arena, Block, SegmentRecord
from predictor.allocator.constants import LARGEST_REQUEST, SMALL_SIZE
from predictor.allocator.out_of_memory import OutOfMemory
from predictor.allocator.search import choose
from predictor.allocator.sizes import round_to_division, segment_size
from predictor.allocator.state import AllocatorState


class CachingAllocator(AllocatorState):
    """The caching allocator of one device. Its arguments are those of :class:`AllocatorState`."""

    def malloc(self, size: int, stream: int = 0) -> Block:
        """Allocate ``size`` bytes (1 or more) on a stream.

        Raises:
            OutOfMemory: no free block fits, and the driver gives no new segment.
        """
        if self._queues:
            self.process_events()
        if size <= 0:
            raise ValueError(f"a block of {size} bytes")
        rounded = (size + 511) & -512 if self._divisions is None else round_to_division(size, self._divisions)
        try:
            arena = (self._small if rounded <= SMALL_SIZE else self._large)[stream]
        except KeyError:
            arena = self._add_arena(rounded <= SMALL_SIZE, stream)
        keys = arena.keys
        index = bisect_left(keys, rounded << ADDRESS_BITS)
        if self._has_extra_rules:
            index = choose(self, arena, rounded, index)
        block = arena.free.pop(keys.pop(index)) if index < len(keys) else self._new_block(arena, rounded, size)

        remainder = block.size - rounded
        if remainder >= arena.smallest_remainder and rounded < self._split_below:
            following = block.next
            upper = Block(block.address + rounded, remainder, FREE, block, following, arena, block.expandable)
            if following is not None:
                following.prev = upper
            block.next = upper
            block.size = rounded
            key = remainder << ADDRESS_BITS | upper.address
            insort(keys, key)
            arena.free[key] = upper
            block_size = rounded
        else:
            block_size = block.size
        block.state = ALLOCATED
        block.requested = size

        self.allocated_bytes = allocated = self.allocated_bytes + block_size
        if allocated > self.peak_allocated_bytes:
            self.peak_allocated_bytes = allocated
        self.requested_bytes = requested = self.requested_bytes + size
        if requested > self.peak_requested_bytes:
            self.peak_requested_bytes = requested
        if self.pending_bytes and allocated + self.pending_bytes > self._peak_active_bytes:
            self._peak_active_bytes = allocated + self.pending_bytes
        return block

    def _new_block(self, arena: Arena, rounded: int, requested: int) -> Block:
        """A block from the driver, where malloc found no free one. If refused, releases cached memory and retries."""
        if requested < LARGEST_REQUEST:
            if self.garbage_bytes is not None:
                release.collect_garbage(self, self.garbage_bytes)
            block = self._try_new_block(arena, rounded)
            if block is None and release.available_cached_blocks(self, arena, rounded):
                block = self._try_new_block(arena, rounded)
            if block is None:
                release.cached_blocks(self)
                self.num_alloc_retries += 1
                block = self._try_new_block(arena, rounded)
            if block is not None:
                return block
            self.num_ooms += 1
        raise OutOfMemory(
            tried_to_allocate_bytes=segment_size(rounded, self.settings), requested_bytes=requested,
            allocated_bytes=self.allocated_bytes, reserved_bytes=self.reserved_bytes,
            free_bytes=self.driver.free_bytes(), allowed_bytes=self.allowed_bytes)

    def _try_new_block(self, arena: Arena, rounded: int) -> Block | None:
        """alloc_block. The memory fraction's limit counts a whole segment, even where only some pages are mapped."""
        size = segment_size(rounded, self.settings)
        if self.allowed_bytes is not None and self.reserved_bytes + size > self.allowed_bytes:
            return None
        if self.settings.expandable_segments:
            return expandable.allocate(self, arena, rounded)
        address = self.driver.allocate(size)
        return None if address is None else self.add_segment(address, size, arena)

    # --- memory of the driver -----------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache."""
        release.cached_blocks(self)

    def release_segment(self, address: int) -> None:
        """Give one free segment back to the driver, as a recorded history did.

        Of an expandable segment, it unmaps the pages of the free block at the address.

        Raises:
            ValueError: there is no free segment at the address.
        """
        for pool in (self.large, self.small):
            for arena in pool.arenas.values():
                for block in arena.blocks():
                    if block.address <= address < block.address + block.size:
                        if block.expandable is not None:
                            return expandable.release(self, block)
                        if block.address == address and not release.is_split(block):
                            return release.segment(self, block)
        raise ValueError(f"no free segment at {address:#x}")

    # --- state --------------------------------------------------------------------------------------------------

    @property
    def inactive_split_bytes(self) -> int:
        """Free bytes inside segments that are partly in use. Expandable segments do not count."""
        return sum(block.size for pool in (self.small, self.large) for arena in pool.arenas.values()
                   for block in arena.free.values() if block.expandable is None and release.is_split(block))

    def snapshot_segments(self) -> tuple[SegmentRecord, ...]:
        """The segments that torch.cuda.memory.memory_snapshot would list, by address."""
        return state_records.records(self._segments.values())

    def seed(self, segments: Iterable[SegmentRecord]) -> dict[int, Block]:
        """Start from segments that exist already. Returns the blocks in use, by address."""
        return state_records.seed(self, segments)
