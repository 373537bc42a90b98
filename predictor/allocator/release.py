"""Giving cached memory back to the driver.

Source: garbage_collect_cached_blocks, release_available_cached_blocks, release_cached_blocks, release_blocks and
release_block, CUDACachingAllocator.cpp, PyTorch 2.11.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from predictor.allocator import events, expandable
from predictor.allocator.blocks import ADDRESS_BITS, Arena, Block, Pool
from predictor.allocator.constants import UNLIMITED

if TYPE_CHECKING:
    from predictor.allocator.allocator import CachingAllocator


def is_split(block: Block) -> bool:
    return block.prev is not None or block.next is not None


def segment(allocator: CachingAllocator, block: Block) -> None:
    """cudaFree one whole segment, which is a free block."""
    if is_split(block):
        # max_split_size_mb was set, or lowered, while the job ran: PyTorch frees a part as if it were a segment.
        raise RuntimeError("PyTorch would fail here: it releases a part of a segment (max_split_size_mb was changed)")
    block.arena.remove(block)
    allocator.remove_segment(block)
    allocator.segments -= 1
    allocator.clock.synchronizations += 1  # cudaFree waits for the device
    allocator.driver.free(block.address)
    allocator.reserve(-block.size)
    allocator.tell("segment_free", block.address, block.size, block.arena.stream)


def cached_blocks(allocator: CachingAllocator) -> None:
    """Wait for every event, then release every segment and page that nothing uses."""
    events.synchronize_and_free(allocator)
    for pool in (allocator.large, allocator.small):
        _blocks(allocator, pool)


def _blocks(allocator: CachingAllocator, pool: Pool) -> None:
    to_unmap = []
    for arena in pool.arenas.values():
        for block in arena.blocks():
            if block.expandable is not None:
                to_unmap.append(block)
            elif not is_split(block):
                segment(allocator, block)
    for block in to_unmap:
        expandable.release(allocator, block)


def available_cached_blocks(allocator: CachingAllocator, arena: Arena, size: int) -> bool:
    """With max_split_size_mb: release oversize blocks of this stream, only as much as ``size`` needs."""
    limit = allocator.settings.max_split_size_bytes
    if limit == UNLIMITED:
        return False
    wanted = max(size, limit)
    blocks = arena.blocks()
    at = bisect_left(arena.keys, wanted << ADDRESS_BITS)
    if at < len(blocks) and blocks[at].expandable is None:
        segment(allocator, blocks[at])
        return True
    released = 0
    for block in reversed(blocks[:at]):  # the largest first
        if released >= wanted or block.size < limit:
            break
        if block.expandable is None:
            released += block.size
            segment(allocator, block)
    return released >= wanted


def collect_garbage(allocator: CachingAllocator, allowed_bytes: int) -> None:
    """With garbage_collection_threshold: above that part of the limit, release large segments of average age or more.

    A block's age is how often the large pool was searched since the block became free.
    """
    pool = allocator.large
    threshold = int(allocator.settings.garbage_collection_threshold * allowed_bytes)
    if allocator.reserved_bytes <= threshold:
        return
    target = allocator.reserved_bytes - threshold
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
