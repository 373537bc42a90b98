"""Release of cached memory to the driver.

Source: garbage_collect_cached_blocks, release_available_cached_blocks, release_cached_blocks, release_blocks and
release_block, CUDACachingAllocator.cpp, PyTorch 2.11.
"""

from __future__ import annotations

from bisect import bisect_left

from predictor.allocator import expandable
from predictor.allocator.blocks import ADDRESS_BITS, Arena, Block, Pool
from predictor.allocator.constants import UNLIMITED
from predictor.allocator.state import AllocatorState


def is_split(block: Block) -> bool:
    return block.prev is not None or block.next is not None


def segment(allocator: AllocatorState, block: Block) -> None:
    """cudaFree one whole segment, which is a free block."""
    if is_split(block):
        # max_split_size_mb was set, or lowered, while the job ran: PyTorch would free a part as if it were a segment.
        raise RuntimeError("PyTorch would fail here: it releases a part of a segment (max_split_size_mb was changed)")
    block.arena.remove(block)
    allocator.remove_segment(block)
    allocator.segments -= 1
    allocator.clock.synchronizations += 1  # cudaFree waits for the device
    allocator.driver.free(block.address)
    allocator.reserve(-block.size)
    allocator.notify("segment_free", block.address, block.size, block.arena.stream)


def cached_blocks(allocator: AllocatorState) -> None:
    """Wait for every event, then release every unused segment and page."""
    allocator.synchronize_and_free_events()
    for pool in (allocator.large, allocator.small):
        _blocks(allocator, pool)


def _blocks(allocator: AllocatorState, pool: Pool) -> None:
    to_unmap = []
    for arena in pool.arenas.values():
        for block in arena.blocks():
            if block.expandable is not None:
                to_unmap.append(block)
            elif not is_split(block):
                segment(allocator, block)
    for block in to_unmap:
        expandable.release(allocator, block)


def available_cached_blocks(allocator: AllocatorState, arena: Arena, size: int) -> bool:
    """With max_split_size_mb: release oversize blocks of this stream until ``size`` bytes are free.

    Returns whether it released enough.
    """
    limit = allocator.settings.max_split_size_bytes
    if limit == UNLIMITED:
        return False
    needed = max(size, limit)
    blocks = arena.blocks()
    index = bisect_left(arena.keys, needed << ADDRESS_BITS)
    if index < len(blocks) and blocks[index].expandable is None:
        segment(allocator, blocks[index])
        return True
    released = 0
    for block in reversed(blocks[:index]):  # the largest first
        if released >= needed or block.size < limit:
            break
        if block.expandable is None:
            released += block.size
            segment(allocator, block)
    return released >= needed


def collect_garbage(allocator: AllocatorState, garbage_bytes: int) -> None:
    """With garbage_collection_threshold: above that many bytes, release large segments of average age or more.

    The age of a block is the number of searches of the large pool since the block became free.
    """
    pool = allocator.large
    if allocator.reserved_bytes <= garbage_bytes:
        return
    target = allocator.reserved_bytes - garbage_bytes
    blocks = [block for arena in pool.arenas.values() for block in arena.blocks() if not is_split(block)]
    total_age, count = sum(pool.searches - block.age for block in blocks), len(blocks)
    blocks = [block for block in blocks if block.expandable is None]
    reclaimed = 0
    while reclaimed < target and count > 0:
        least_age = total_age / count
        old = [block for block in blocks if pool.searches - block.age >= least_age]
        if not old:
            return
        blocks = [block for block in blocks if pool.searches - block.age < least_age]
        for block in old:
            reclaimed += block.size
            total_age -= pool.searches - block.age
            count -= 1
            segment(allocator, block)
