"""Expandable segments: one range of addresses for each pool and stream. Its pages are mapped as they are needed.

Source: ExpandableSegment, find_expandable_block, try_allocate_expandable_block, map_block and unmap_block,
CUDACachingAllocator.cpp, PyTorch 2.11.
"""

from __future__ import annotations

from collections.abc import Callable

from predictor.allocator.blocks import FREE, UNMAPPED, Arena, Block, ExpandableSegment
from predictor.allocator.state import AllocatorState


def allocate(allocator: AllocatorState, arena: Arena, size: int) -> Block | None:
    """A block of at least ``size`` bytes, from mapped and newly mapped pages. It is in no free list.

    None if the driver refuses a page. Pages mapped before that stay mapped.
    """
    block: Block | None = _find(allocator, arena, size)
    if block is not None and block.state == UNMAPPED:
        block = _map(allocator, block, min(block.size, size))
    while block is not None and block.size < size:  # mapping the unmapped pages that follow merges them into the block
        following = block.next
        assert following is not None  # _find has checked that there is room; a replayed history may break this
        block = _map(allocator, following, min(size - block.size, following.size))
    if block is not None:
        arena.remove(block)
    return block


def _find(allocator: AllocatorState, arena: Arena, size: int) -> Block:
    """The lowest free or unmapped block that begins ``size`` contiguous bytes of free or unmapped memory."""
    for address in arena.unmapped_addresses:
        block = arena.unmapped[address]
        if block.prev is not None and block.prev.state == FREE:
            block = block.prev
        if _has_room(block, size):
            return block
    # 1 1/8 of the device's memory: pages that are mapped anew need addresses behind those that were unmapped. More than
    # that is only asked for where the driver has no limit, and the question is how much a job would need.
    page, driver = arena.pool.page_bytes, allocator.driver
    total = -(-max(driver.total_bytes + driver.total_bytes // 8, size) // page) * page
    segment = ExpandableSegment(driver.reserve(total), total, page)
    return allocator.add_expandable(segment, arena)


def _has_room(block: Block | None, size: int) -> bool:
    while size > 0:
        if block is None or block.state not in (FREE, UNMAPPED):
            return False
        size -= block.size
        block = block.next
    return True


def _map(allocator: AllocatorState, block: Block, size: int) -> Block | None:
    """Map pages at the start of an unmapped block. Returns the free block that now contains them, or None."""
    assert block.expandable is not None  # only expandable segments have unmapped blocks
    arena, page = block.arena, block.expandable.page_bytes
    pages = -(-size // page)
    mapped = pages * page
    if not allocator.driver.map(block.address, page, pages):
        return None
    arena.remove_unmapped(block)
    address = block.address
    if mapped < block.size:
        arena.insert_unmapped(split(block, mapped))
    block.state = FREE
    block = joined(block, arena.remove)
    arena.insert(block)
    allocator.reserve(mapped)
    allocator.notify("segment_map", address, mapped, arena.stream)
    return block


def joined(block: Block, take_out: Callable[[Block], None]) -> Block:
    """Merge a block with its neighbours of the same state. ``take_out`` removes a neighbour from its list."""
    following, previous = block.next, block.prev
    if following is not None and following.state == block.state:
        take_out(following)
        absorb(block)
    if previous is not None and previous.state == block.state:
        take_out(previous)
        block = absorb(previous)
    return block


def release(allocator: AllocatorState, block: Block) -> None:
    """Unmap every whole page of a free block. Give the addresses back when the whole segment is unmapped."""
    segment, arena = block.expandable, block.arena
    assert segment is not None  # callers pass blocks of expandable segments
    page, base = segment.page_bytes, segment.address
    first = base + -(-(block.address - base) // page) * page
    last = base + (block.address + block.size - base) // page * page
    if first >= last:
        return
    arena.remove(block)
    if last < block.address + block.size:
        arena.insert(split(block, last - block.address))
    if first > block.address:
        upper = split(block, first - block.address)
        arena.insert(block)
        block = upper
    allocator.clock.synchronizations += 1  # unmapHandles waits for the stream
    allocator.driver.unmap(first, page, (last - first) // page)
    block.state = UNMAPPED
    block = joined(block, arena.remove_unmapped)
    arena.insert_unmapped(block)
    allocator.reserve(first - last)
    allocator.notify("segment_unmap", first, last - first, arena.stream)
    if block.prev is None and block.next is None:
        arena.remove_unmapped(block)
        allocator.remove_segment(block)
        allocator.driver.unreserve(block.address)


def split(block: Block, size: int) -> Block:
    """Cut a block at ``size`` bytes. The upper part is a new block and in no list."""
    upper = Block(block.address + size, block.size - size, block.state, block, block.next, block.arena,
                  block.expandable)
    if upper.next is not None:
        upper.next.prev = upper
    block.next = upper
    block.size = size
    return upper


def absorb(block: Block) -> Block:
    """Merge a block with the next higher one, which must be in no list."""
    upper = block.next
    assert upper is not None  # callers have looked
    block.size += upper.size
    block.next = upper.next
    if block.next is not None:
        block.next.prev = block
    return block
