"""Converts the allocator's state to segment records, and puts an empty allocator into a recorded state."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.allocator.blocks import (
    ALLOCATED,
    FREE,
    PENDING,
    STATE_NAMES,
    UNMAPPED,
    Arena,
    Block,
    BlockRecord,
    ExpandableSegment,
    SegmentRecord,
)
from predictor.allocator.constants import DRIVER_PAGE
from predictor.allocator.expandable import split as cut
from predictor.allocator.state import AllocatorState

_STATES = {name: state for state, name in STATE_NAMES.items()} | {"active_awaiting_free": PENDING}


def records(lowest_blocks: Iterable[Block]) -> tuple[SegmentRecord, ...]:
    """The segments that snapshot() lists (CUDACachingAllocator.cpp), from the lowest block of each.

    An expandable segment gives one record for each contiguous range of mapped blocks.
    """
    segments = []
    for lowest in lowest_blocks:
        block: Block | None = lowest
        while block is not None:
            mapped = []
            while block is not None and block.state != UNMAPPED:
                mapped.append(block)
                block = block.next
            if mapped:
                segments.append(_record(mapped))
            if block is not None:
                block = block.next
    return tuple(sorted(segments, key=lambda segment: segment.address))


def _record(mapped: list[Block]) -> SegmentRecord:
    arena = mapped[0].arena
    blocks = tuple(BlockRecord(block.address, block.size, 0 if block.state == FREE else block.requested,
                               STATE_NAMES[block.state]) for block in mapped)
    return SegmentRecord(mapped[0].address, sum(block.size for block in mapped), arena.stream,
                         "small" if arena.pool.is_small else "large", mapped[0].expandable is not None, blocks)


def seed(allocator: AllocatorState, segments: Iterable[SegmentRecord]) -> dict[int, Block]:
    """Put segments into an allocator that has none. Returns the blocks that are not free, by address.

    The records do not contain events: a pending block stays pending until ``free_completed``. Mapped records of one
    pool and stream count as one expandable segment, as far as its range of addresses reaches.

    Raises:
        ValueError: the allocator is not empty, or the segments cannot be true.
    """
    if allocator.reserved_bytes:
        raise ValueError("only an empty allocator can be seeded")
    in_use: dict[int, Block] = {}
    expandable: dict[Arena, ExpandableSegment] = {}
    for record in sorted(segments, key=lambda segment: segment.address):
        arena = allocator.arena(record.pool == "small", record.stream)
        if record.is_expandable:
            block = _map(allocator, arena, record, expandable)
        else:
            mapped = -(-record.total_size // DRIVER_PAGE) * DRIVER_PAGE
            allocator.driver.adopt(record.address, record.total_size, mapped)
            block = allocator.add_segment(record.address, record.total_size, arena)
        _fill(allocator, block, record, in_use)
    allocator.reset_peaks()
    return in_use


def _map(allocator: AllocatorState, arena: Arena, record: SegmentRecord,
         expandable: dict[Arena, ExpandableSegment]) -> Block:
    """The block of one mapped record, cut out of its expandable segment."""
    driver, page = allocator.driver, arena.pool.page_bytes
    segment = expandable.get(arena)
    if segment is None or record.address + record.total_size > segment.address + segment.size:
        total = max(driver.total_bytes + driver.total_bytes // 8, record.total_size)
        segment = expandable[arena] = ExpandableSegment(record.address, -(-total // page) * page, page)
        driver.adopt(segment.address, segment.size, 0)
        allocator.add_expandable(segment, arena)
    if not driver.map(record.address, page, record.total_size // page):
        raise ValueError("the segments take more than the driver has")
    block = arena.unmapped[arena.unmapped_addresses[-1]]  # records come by address: the last block is the free range
    arena.remove_unmapped(block)
    if record.address > block.address:
        upper = cut(block, record.address - block.address)
        arena.insert_unmapped(block)
        block = upper
    if record.total_size < block.size:
        arena.insert_unmapped(cut(block, record.total_size))
    block.state = FREE
    allocator.reserve(record.total_size)
    allocator.notify("segment_map", record.address, record.total_size, record.stream)
    return block


def _fill(allocator: AllocatorState, block: Block, record: SegmentRecord, in_use: dict[int, Block]) -> None:
    """Cut the only block of a segment into the recorded blocks, and set their states."""
    if sum(part.size for part in record.blocks) != record.total_size:
        raise ValueError(f"the blocks of the segment at {record.address:#x} do not fill it")
    for number, part in enumerate(record.blocks):
        upper = cut(block, part.size) if number + 1 < len(record.blocks) else block
        block.state = _STATES[part.state]
        if block.state == FREE:
            block.arena.insert(block)
        else:
            block.requested = part.requested_size
            in_use[block.address] = block
            allocator.requested_bytes += part.requested_size
            if block.state == ALLOCATED:
                allocator.allocated_bytes += part.size
            else:
                allocator.pending_bytes += part.size
        block = upper


