"""PyTorch's native CUDA caching allocator as a deterministic simulation.

Source: DeviceCachingAllocator, c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11. Not simulated: CUDA graphs,
user pools (torch.cuda.MemPool), several devices. A job calls ``malloc`` and ``free`` all the time, so both are written
for speed. Rare operations are in the other modules of this package.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from predictor.allocator import events, expandable, release, state_records
from predictor.allocator.blocks import (
    ADDRESS_BITS,
    ALLOCATED,
    FREE,
    PENDING,
    UNMAPPED,
    Arena,
    Block,
    ExpandableSegment,
    Pool,
    SegmentRecord,
)
from predictor.allocator.completion import Clock
from predictor.allocator.constants import LARGEST_REQUEST, MIN_BLOCK, SMALL_SEGMENT, SMALL_SIZE, UNLIMITED
from predictor.allocator.driver import Driver, SimulatedDriver
from predictor.allocator.out_of_memory import OutOfMemory
from predictor.allocator.search import choose
from predictor.allocator.settings import AllocatorSettings
from predictor.allocator.sizes import round_to_division, segment_size

#: Is called for each change of a segment: action (as in a recorded history), address, bytes, stream.
Observer = Callable[[str, int, int, int], None]


class CachingAllocator:
    """The caching allocator of one device. All statistics are plain integers: bytes, or counts.

    ``completion`` says when the events of deferred frees complete: "immediate" (before the next allocation),
    "synchronization", or "launches:N". The allocator itself synchronises when it releases memory.
    ``observer`` is called with ("segment_alloc" | "segment_free" | "segment_map" | "segment_unmap", address, bytes,
    stream).
    """

    def __init__(self, settings: AllocatorSettings | None = None, driver: Driver | None = None,
                 completion: str = "immediate", observer: Observer | None = None) -> None:
        self.driver = SimulatedDriver() if driver is None else driver
        self.clock = Clock(completion)
        self.observer = observer
        self.outstanding = events.OutstandingEvents()
        self._queues = self.outstanding.queues
        self._uses: dict[Block, set[int]] = {}  # block -> the other streams that it is used on
        self._segments: dict[int, Block] = {}  # address of a segment -> its lowest block
        self.small = Pool(True, SMALL_SEGMENT)
        self.large = Pool(False, 0)
        self._small, self._large = self.small.arenas, self.large.arenas

        self.requested_bytes = self.allocated_bytes = self.reserved_bytes = self.pending_bytes = 0
        self.peak_requested_bytes = self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self._peak_active_bytes = 0  # only counted while blocks are pending
        self.segments = self.num_alloc_retries = self.num_ooms = 0

        self.allowed_bytes: int | None = None
        self._keeps_ages = False
        self.settings = AllocatorSettings()
        self.change_settings(AllocatorSettings() if settings is None else settings)
        self.set_per_process_memory_fraction(self.settings.per_process_memory_fraction)

    # --- frequent operations ------------------------------------------------------------------------------------

    def malloc(self, size: int, stream: int = 0) -> Block:
        """Allocate ``size`` bytes (1 or more) on a stream.

        Raises:
            OutOfMemory: no free block fits, and the driver gives no new segment.
        """
        if self._queues:
            events.process(self)
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

    def free(self, block: Block) -> None:
        """Free a block. If other streams used it, it stays pending until their events are complete."""
        if block.state != ALLOCATED:
            raise ValueError("the block is not allocated")
        if self._uses and block in self._uses:
            streams = self._uses.pop(block)
            self.free_requested(block)
            events.insert(self, block, streams)
            return
        size = block.size
        self.allocated_bytes -= size
        self.requested_bytes -= block.requested
        block.state = FREE
        arena = block.arena
        keys = arena.keys
        following = block.next
        if following is not None and not following.state:  # FREE is 0
            key = following.size << ADDRESS_BITS | following.address
            del keys[bisect_left(keys, key)]
            del arena.free[key]
            size += following.size
            block.next = following = following.next
            if following is not None:
                following.prev = block
        previous = block.prev
        if previous is not None and not previous.state:
            key = previous.size << ADDRESS_BITS | previous.address
            del keys[bisect_left(keys, key)]
            del arena.free[key]
            size += previous.size
            previous.next = following
            if following is not None:
                following.prev = previous
            block = previous
        block.size = size
        if self._keeps_ages:
            block.age = arena.pool.searches
        key = size << ADDRESS_BITS | block.address
        insort(keys, key)
        arena.free[key] = block

    # --- streams and events -------------------------------------------------------------------------------------

    def record_stream(self, block: Block, stream: int) -> None:
        """Tensor.record_stream: another stream uses the block, too."""
        if stream != block.arena.stream:
            self._uses.setdefault(block, set()).add(stream)

    def free_requested(self, block: Block) -> None:
        """The first half of a free: the program has freed the block, but events may still be outstanding."""
        if block.state != ALLOCATED:
            raise ValueError("the block is not allocated")
        block.state = PENDING
        self.allocated_bytes -= block.size
        self.pending_bytes += block.size

    def free_completed(self, block: Block) -> None:
        """The second half: the block is free."""
        if block.state != PENDING:
            raise ValueError("the block does not wait for a free")
        block.state = ALLOCATED  # so that free() takes it like any other block
        self.pending_bytes -= block.size
        self.allocated_bytes += block.size
        self._uses.pop(block, None)
        self.free(block)

    def launch(self, count: int = 1) -> None:
        """The job launched kernels; completes events under "launches:N"."""
        self.clock.launches += count

    def synchronize(self) -> None:
        """The job waited for the device: events recorded so far are complete. The next malloc frees their blocks."""
        self.clock.synchronizations += 1

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

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """torch.cuda.set_per_process_memory_fraction (setMemoryFraction)."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"memory fraction {fraction} is not from 0 to 1")
        self.allowed_bytes = int(fraction * self.driver.total_bytes) if fraction < 1 else None
        self._update_rules()

    def change_settings(self, settings: AllocatorSettings) -> None:
        """torch.cuda.memory._set_allocator_settings. Existing blocks and segments stay as they are."""
        self.settings = settings
        self.large.page_bytes = settings.large_segment_size_bytes
        divisions = settings.roundup_power2_divisions
        self._divisions = divisions if max(divisions) > 1 else None
        self._split_below = UNLIMITED if settings.expandable_segments else settings.max_split_size_bytes
        self._update_rules()
        for arena in (*self._small.values(), *self._large.values()):
            arena.smallest_remainder = self._smallest_remainder(arena.pool)

    # --- statistics and state -----------------------------------------------------------------------------------

    @property
    def active_bytes(self) -> int:
        """Bytes of blocks that are allocated, or freed but waiting for events."""
        return self.allocated_bytes + self.pending_bytes

    @property
    def peak_active_bytes(self) -> int:
        return max(self._peak_active_bytes, self.peak_allocated_bytes)

    @property
    def inactive_split_bytes(self) -> int:
        """Free bytes inside segments that are partly in use. Expandable segments do not count."""
        return sum(block.size for pool in (self.small, self.large) for arena in pool.arenas.values()
                   for block in arena.free.values() if block.expandable is None and release.is_split(block))

    def reset_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats."""
        self.peak_requested_bytes, self.peak_allocated_bytes = self.requested_bytes, self.allocated_bytes
        self.peak_reserved_bytes, self._peak_active_bytes = self.reserved_bytes, self.active_bytes

    def snapshot_segments(self) -> tuple[SegmentRecord, ...]:
        """The segments that torch.cuda.memory.memory_snapshot would list, by address."""
        return state_records.records(self._segments.values())

    def seed(self, segments: Iterable[SegmentRecord]) -> dict[int, Block]:
        """Start from segments that exist already. Returns the blocks in use, by address."""
        return state_records.seed(self, segments)

    # --- for the other modules of this package ------------------------------------------------------------------

    def reserve(self, size: int) -> None:
        """Count bytes that came from the driver (positive), or went back to it (negative)."""
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def notify(self, action: str, address: int, size: int, stream: int) -> None:
        if self.observer is not None:
            self.observer(action, address, size, stream)

    def add_segment(self, address: int, size: int, arena: Arena) -> Block:
        """Register a new segment of the driver. Its only block is in no free list yet."""
        block = self._segments[address] = Block(address, size, FREE, None, None, arena, None)
        self.segments += 1
        self.reserve(size)
        self.notify("segment_alloc", address, size, arena.stream)
        return block

    def add_expandable(self, segment: ExpandableSegment, arena: Arena) -> Block:
        """Register a reserved range of addresses. Its only block is unmapped."""
        block = Block(segment.address, segment.size, UNMAPPED, None, None, arena, segment)
        self._segments[segment.address] = block
        arena.insert_unmapped(block)
        self._update_rules()
        return block

    def remove_segment(self, block: Block) -> None:
        del self._segments[block.address]

    def arena(self, is_small: bool, stream: int) -> Arena:
        arena = (self._small if is_small else self._large).get(stream)
        return self._add_arena(is_small, stream) if arena is None else arena

    # --- seldom -------------------------------------------------------------------------------------------------

    def _add_arena(self, is_small: bool, stream: int) -> Arena:
        pool = self.small if is_small else self.large
        pool.arenas[stream] = arena = Arena(pool, stream, self._smallest_remainder(pool))
        return arena

    def _smallest_remainder(self, pool: Pool) -> int:
        """The smallest remainder that is split off (should_split)."""
        return MIN_BLOCK if pool.is_small or self.settings.expandable_segments else SMALL_SIZE + 1

    def _update_rules(self) -> None:
        """Note whether the search for a free block follows more rules than best fit."""
        self.collects_garbage = self.allowed_bytes is not None and self.settings.garbage_collection_threshold > 0
        if self.collects_garbage and not self._keeps_ages:
            self._keeps_ages = True
            for pool in (self.small, self.large):
                for arena in pool.arenas.values():
                    for block in arena.free.values():
                        block.age = 0
        self._has_extra_rules = (self.collects_garbage or self.settings.expandable_segments
                            or self.settings.max_split_size_bytes != UNLIMITED
                            or any(block.expandable is not None for block in self._segments.values()))

    def _new_block(self, arena: Arena, rounded: int, requested: int) -> Block:
        """A block from the driver, where malloc found no free one. If refused, releases cached memory and retries."""
        if requested < LARGEST_REQUEST:
            if self.collects_garbage:
                assert self.allowed_bytes is not None  # _update_rules
                release.collect_garbage(self, self.allowed_bytes)
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
