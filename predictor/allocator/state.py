"""The state of the simulated allocator: its pools, segments, counters, settings and outstanding events.

The modules of this package that change the state, and :class:`predictor.allocator.allocator.CachingAllocator`, do so
by its operations. One of them is ``free``, which a job calls all the time: it is written for speed.

Source: DeviceCachingAllocator, c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

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
)
from predictor.allocator.completion import Clock
from predictor.allocator.constants import MIN_BLOCK, SMALL_SEGMENT, SMALL_SIZE, UNLIMITED
from predictor.allocator.driver import Driver, SimulatedDriver
from predictor.allocator.events import OutstandingEvents
from predictor.allocator.settings import AllocatorSettings, garbage_limit, memory_limit

#: Is called for each change of a segment: action (as in a recorded history), address, bytes, stream.
Observer = Callable[[str, int, int, int], None]


class AllocatorState:
    """The state of one device's allocator. All statistics are plain integers: bytes, or counts.

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
        self.outstanding = OutstandingEvents(self.clock)
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

    # --- frees and events ---------------------------------------------------------------------------------------

    def free(self, block: Block) -> None:
        """Free a block. If other streams used it, it stays pending until their events are complete."""
        if block.state != ALLOCATED:
            raise ValueError("the block is not allocated")
        if self._uses and block in self._uses:
            streams = self._uses.pop(block)
            self.free_requested(block)
            self.outstanding.insert(block, streams)
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

    def process_events(self) -> None:
        """Free the blocks whose events are complete."""
        for block in self.outstanding.completed():
            self.free_completed(block)

    def synchronize_and_free_events(self) -> None:
        """Wait for every event, and free the blocks that waited."""
        for block in self.outstanding.waited_for():
            self.free_completed(block)

    def complete_events(self, block: Block) -> None:
        """Free a block that waits, as if its own events were complete. Does nothing if it waits for none."""
        if self.outstanding.forget(block):
            self.free_completed(block)

    def launch(self, count: int = 1) -> None:
        """The job launched kernels; completes events under "launches:N"."""
        self.clock.launches += count

    def synchronize(self) -> None:
        """The job waited for the device: events recorded so far are complete. The next malloc frees their blocks."""
        self.clock.synchronizations += 1

    # --- settings -----------------------------------------------------------------------------------------------

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """torch.cuda.set_per_process_memory_fraction (setMemoryFraction)."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"memory fraction {fraction} is not from 0 to 1")
        self.allowed_bytes = memory_limit(fraction, self.driver.total_bytes)
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

    # --- statistics ---------------------------------------------------------------------------------------------

    @property
    def active_bytes(self) -> int:
        """Bytes of blocks that are allocated, or freed but waiting for events."""
        return self.allocated_bytes + self.pending_bytes

    @property
    def peak_active_bytes(self) -> int:
        return max(self._peak_active_bytes, self.peak_allocated_bytes)

    def reset_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats."""
        self.peak_requested_bytes, self.peak_allocated_bytes = self.requested_bytes, self.allocated_bytes
        self.peak_reserved_bytes, self._peak_active_bytes = self.reserved_bytes, self.active_bytes

    # --- memory of the driver -----------------------------------------------------------------------------------

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

    def _add_arena(self, is_small: bool, stream: int) -> Arena:
        pool = self.small if is_small else self.large
        pool.arenas[stream] = arena = Arena(pool, stream, self._smallest_remainder(pool))
        return arena

    def _smallest_remainder(self, pool: Pool) -> int:
        """The smallest remainder that is split off (should_split)."""
        return MIN_BLOCK if pool.is_small or self.settings.expandable_segments else SMALL_SIZE + 1

    def _update_rules(self) -> None:
        """Note whether the search for a free block follows more rules than best fit."""
        self.garbage_bytes = garbage_limit(self.settings.garbage_collection_threshold, self.allowed_bytes)
        self.collects_garbage = self.garbage_bytes is not None
        if self.collects_garbage and not self._keeps_ages:
            self._keeps_ages = True
            for pool in (self.small, self.large):
                for arena in pool.arenas.values():
                    for block in arena.free.values():
                        block.age = 0
        self._has_extra_rules = (self.collects_garbage or self.settings.expandable_segments
                            or self.settings.max_split_size_bytes != UNLIMITED
                            or any(block.expandable is not None for block in self._segments.values()))
