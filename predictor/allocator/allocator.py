"""PyTorch's native CUDA caching allocator as a deterministic simulation.

Source: DeviceCachingAllocator, c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11. Not simulated: CUDA graphs,
user pools (torch.cuda.MemPool), several devices. ``malloc`` and ``free`` are the whole of what a job does often,
so they are written for speed; what happens seldom is in the modules beside.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from predictor.allocator import events, expandable, release, warm
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

#: Told of what happens to segments: action as in a recorded history, address, bytes, stream.
Observer = Callable[[str, int, int, int], None]


class CachingAllocator:
    """One device's allocator. All statistics are plain integers of bytes, or counts.

    ``completion`` says when the events behind deferred frees are complete: "immediate" (at the next look),
    "synchronization", or "launches:N". The allocator itself synchronises when it releases memory.
    ``observer`` is called with ("segment_alloc" | "segment_free" | "segment_map" | "segment_unmap", address, bytes,
    stream).
    """

    def __init__(self, settings: AllocatorSettings | None = None, driver: Driver | None = None,
                 completion: str = "immediate", observer: Observer | None = None) -> None:
        self.driver = SimulatedDriver() if driver is None else driver
        self.clock = Clock(completion)
        self.observer = observer
        self.outstanding = events.Outstanding()
        self._queues = self.outstanding.queues
        self._uses: dict[Block, set[int]] = {}  # blocks in use on other streams than their own
        self._segments: dict[int, Block] = {}  # lowest block of each segment, by its address
        self.small = Pool(True, SMALL_SEGMENT)
        self.large = Pool(False, 0)
        self._small, self._large = self.small.arenas, self.large.arenas

        self.requested_bytes = self.allocated_bytes = self.reserved_bytes = self.pending_bytes = 0
        self.peak_requested_bytes = self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self._peak_active_bytes = 0  # while something was pending
        self.segments = self.num_alloc_retries = self.num_ooms = 0

        self.allowed_bytes: int | None = None
        self._keeps_ages = False
        self.settings = AllocatorSettings()
        self.change_settings(AllocatorSettings() if settings is None else settings)
        self.set_per_process_memory_fraction(self.settings.per_process_memory_fraction)

    # --- what a job does often ----------------------------------------------------------------------------------

    def malloc(self, size: int, stream: int = 0) -> Block:
        """Allocate ``size`` bytes (1 or more) on a stream; raises OutOfMemory."""
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
        at = bisect_left(keys, rounded << ADDRESS_BITS)
        if self._is_special:
            at = choose(self, arena, rounded, at)
        block = arena.free.pop(keys.pop(at)) if at < len(keys) else self._new_block(arena, rounded, size)

        rest = block.size - rounded
        if rest >= arena.least_rest and rounded < self._split_below:
            following = block.next
            upper = Block(block.address + rounded, rest, FREE, block, following, arena, block.expandable)
            if following is not None:
                following.prev = upper
            block.next = upper
            block.size = rounded
            key = rest << ADDRESS_BITS | upper.address
            insort(keys, key)
            arena.free[key] = upper
            got = rounded
        else:
            got = block.size
        block.state = ALLOCATED
        block.requested = size

        self.allocated_bytes = allocated = self.allocated_bytes + got
        if allocated > self.peak_allocated_bytes:
            self.peak_allocated_bytes = allocated
        self.requested_bytes = requested = self.requested_bytes + size
        if requested > self.peak_requested_bytes:
            self.peak_requested_bytes = requested
        if self.pending_bytes and allocated + self.pending_bytes > self._peak_active_bytes:
            self._peak_active_bytes = allocated + self.pending_bytes
        return block

    def free(self, block: Block) -> None:
        """Free a block; one that other streams used stays taken until their events are complete."""
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
        """Tensor.record_stream: the block is used on that stream too."""
        if stream != block.arena.stream:
            self._uses.setdefault(block, set()).add(stream)

    def free_requested(self, block: Block) -> None:
        """The first half of a free: the program is done with the block, events may still be outstanding."""
        if block.state != ALLOCATED:
            raise ValueError("the block is not allocated")
        block.state = PENDING
        self.allocated_bytes -= block.size
        self.pending_bytes += block.size

    def free_completed(self, block: Block) -> None:
        """The second half: the block is free."""
        if block.state != PENDING:
            raise ValueError("the block does not wait for a free")
        block.state = ALLOCATED  # as if it had never waited
        self.pending_bytes -= block.size
        self.allocated_bytes += block.size
        self._uses.pop(block, None)
        self.free(block)

    def launch(self, count: int = 1) -> None:
        """The job launched kernels; completes events under "launches:N"."""
        self.clock.launches += count

    def synchronize(self) -> None:
        """The job waited for the device: events recorded so far are complete, as the next malloc will see."""
        self.clock.synchronizations += 1

    # --- memory of the driver -----------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache."""
        release.cached_blocks(self)

    def release_segment(self, address: int) -> None:
        """What a recorded history says of one segment or, of an expandable one, of the free block at an address."""
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
        self._note_rules()

    def change_settings(self, settings: AllocatorSettings) -> None:
        """torch.cuda.memory._set_allocator_settings; what is allocated stays as it is."""
        self.settings = settings
        self.large.page_bytes = settings.large_segment_size_bytes
        divisions = settings.roundup_power2_divisions
        self._divisions = divisions if max(divisions) > 1 else None
        self._split_below = UNLIMITED if settings.expandable_segments else settings.max_split_size_bytes
        self._note_rules()
        for arena in (*self._small.values(), *self._large.values()):
            arena.least_rest = self._least_rest(arena.pool)

    # --- what others ask ----------------------------------------------------------------------------------------

    @property
    def active_bytes(self) -> int:
        """Allocated, or waiting for events."""
        return self.allocated_bytes + self.pending_bytes

    @property
    def peak_active_bytes(self) -> int:
        return max(self._peak_active_bytes, self.peak_allocated_bytes)

    @property
    def inactive_split_bytes(self) -> int:
        """Free parts of segments that are in use; expandable ones do not count."""
        return sum(block.size for pool in (self.small, self.large) for arena in pool.arenas.values()
                   for block in arena.free.values() if block.expandable is None and release.is_split(block))

    def reset_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats."""
        self.peak_requested_bytes, self.peak_allocated_bytes = self.requested_bytes, self.allocated_bytes
        self.peak_reserved_bytes, self._peak_active_bytes = self.reserved_bytes, self.active_bytes

    def snapshot_segments(self) -> tuple[SegmentRecord, ...]:
        """What torch.cuda.memory.memory_snapshot lists, by address."""
        return warm.records(self._segments.values())

    def seed(self, segments: Iterable[SegmentRecord]) -> dict[int, Block]:
        """Start from segments that exist already; returns the blocks in use by their addresses."""
        return warm.seed(self, segments)

    # --- for the modules beside ---------------------------------------------------------------------------------

    def reserve(self, size: int) -> None:
        """Count bytes got from the driver, or (below 0) given back."""
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def tell(self, action: str, address: int, size: int, stream: int) -> None:
        if self.observer is not None:
            self.observer(action, address, size, stream)

    def add_segment(self, address: int, size: int, arena: Arena) -> Block:
        """Book a segment that the driver gave; its one block is in no list."""
        block = self._segments[address] = Block(address, size, FREE, None, None, arena, None)
        self.segments += 1
        self.reserve(size)
        self.tell("segment_alloc", address, size, arena.stream)
        return block

    def add_expandable(self, segment: ExpandableSegment, arena: Arena) -> Block:
        """Book a range of addresses; its one block is unmapped."""
        block = Block(segment.address, segment.size, UNMAPPED, None, None, arena, segment)
        self._segments[segment.address] = block
        arena.insert_unmapped(block)
        self._note_rules()
        return block

    def remove_segment(self, block: Block) -> None:
        del self._segments[block.address]

    def arena(self, is_small: bool, stream: int) -> Arena:
        arena = (self._small if is_small else self._large).get(stream)
        return self._add_arena(is_small, stream) if arena is None else arena

    # --- seldom -------------------------------------------------------------------------------------------------

    def _add_arena(self, is_small: bool, stream: int) -> Arena:
        pool = self.small if is_small else self.large
        pool.arenas[stream] = arena = Arena(pool, stream, self._least_rest(pool))
        return arena

    def _least_rest(self, pool: Pool) -> int:
        """The smallest remainder that is split off (should_split)."""
        return MIN_BLOCK if pool.is_small or self.settings.expandable_segments else SMALL_SIZE + 1

    def _note_rules(self) -> None:
        """Whether a search follows more rules than best fit."""
        self.collects = self.allowed_bytes is not None and self.settings.garbage_collection_threshold > 0
        if self.collects and not self._keeps_ages:
            self._keeps_ages = True
            for pool in (self.small, self.large):
                for arena in pool.arenas.values():
                    for block in arena.free.values():
                        block.age = 0
        self._is_special = (self.collects or self.settings.expandable_segments
                            or self.settings.max_split_size_bytes != UNLIMITED
                            or any(block.expandable is not None for block in self._segments.values()))

    def _new_block(self, arena: Arena, rounded: int, requested: int) -> Block:
        """A block from the driver, after releasing what may help (malloc, where no free block was found)."""
        if requested < LARGEST_REQUEST:
            if self.collects:
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
        """alloc_block; the limit of a memory fraction counts a whole segment even where only pages are mapped."""
        size = segment_size(rounded, self.settings)
        if self.allowed_bytes is not None and self.reserved_bytes + size > self.allowed_bytes:
            return None
        if self.settings.expandable_segments:
            return expandable.allocate(self, arena, rounded)
        address = self.driver.allocate(size)
        return None if address is None else self.add_segment(address, size, arena)
