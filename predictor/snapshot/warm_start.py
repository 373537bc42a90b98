"""Puts the simulated allocator into the state in which a recording began."""

from __future__ import annotations

from predictor.allocator import Block, BlockRecord, CachingAllocator, SegmentRecord
from predictor.snapshot.initial_state import Start
from predictor.snapshot.records import Segment


def seed(allocator: CachingAllocator, start: Start) -> dict[int, Block]:
    """Puts an empty allocator into the initial state of a recording. Returns the blocks in use, by address."""
    page = {"small": allocator.small.page_bytes, "large": allocator.large.page_bytes}
    # The range of an expandable segment begins at the lowest page that was ever mapped. To set this beginning, a page
    # is mapped there and unmapped again.
    lowest = {(s.pool, s.stream): s.address for s in reversed(start.segments) if s.is_expandable}
    below = [SegmentRecord(address, size, stream, pool, True, (BlockRecord(address, size, 0, "inactive"),))
             for (pool, stream), address in start.floors.items()
             if address + (size := page[pool]) <= lowest.get((pool, stream), 0)]
    blocks = allocator.seed([_record(segment) for segment in start.segments] + below)
    for record in below:
        allocator.release_segment(record.address)
    allocator.reset_peaks()
    return blocks


def _record(segment: Segment) -> SegmentRecord:
    blocks = tuple(BlockRecord(b.address, b.size, b.requested_size, b.state.value) for b in segment.blocks)
    return SegmentRecord(segment.address, segment.total_size, segment.stream, segment.pool, segment.is_expandable,
                         blocks)
