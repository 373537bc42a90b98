"""The data structures of the simulated allocator: blocks, pools, sorted free lists, and records of segments.

A segment is a chain of blocks by address (``prev``, ``next``). The block at its lowest address stays the same
object while the segment lives: a split makes a new block above, a merge dissolves the upper one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

#: States of a block. Two neighbours merge when both are FREE or both UNMAPPED.
FREE, ALLOCATED, PENDING, UNMAPPED = range(4)

#: State names of torch.cuda.memory._snapshot() (torch/csrc/cuda/memory_snapshot.cpp).
STATE_NAMES = {FREE: "inactive", ALLOCATED: "active_allocated", PENDING: "active_pending_free"}

#: Free blocks are ordered by size, then by address (BlockComparatorSize, CUDACachingAllocator.cpp). The sort key is one
#: integer: the size in the high bits, the address in these low bits.
ADDRESS_BITS = 64


class Block:
    """A contiguous part of one segment. Sizes and addresses in bytes.

    ``requested`` is the size that the program requested. ``expandable`` is the block's expandable segment, if any.
    ``age`` is the pool's count of searches when the block became free (only kept while garbage collection is on).
    """

    __slots__ = ("address", "size", "state", "prev", "next", "arena", "expandable", "requested", "age")
    requested: int  # no value before the first allocation
    age: int

    def __init__(self, address: int, size: int, state: int, prev: Block | None, next: Block | None, arena: Arena,
                 expandable: ExpandableSegment | None) -> None:
        self.address = address
        self.size = size
        self.state = state
        self.prev = prev
        self.next = next
        self.arena = arena
        self.expandable = expandable


class Pool:
    """The small or the large pool: its arenas by stream, and its number of searches (for garbage collection)."""

    __slots__ = ("is_small", "page_bytes", "arenas", "searches")

    def __init__(self, is_small: bool, page_bytes: int) -> None:
        self.is_small = is_small
        self.page_bytes = page_bytes
        self.arenas: dict[int, Arena] = {}
        self.searches = 0


class Arena:
    """The part of one pool that belongs to one stream: its free blocks, and its unmapped blocks by address.

    ``smallest_remainder`` is the smallest remainder, in bytes, that is split off a block.
    """

    __slots__ = ("pool", "stream", "keys", "free", "unmapped_addresses", "unmapped", "smallest_remainder")

    def __init__(self, pool: Pool, stream: int, smallest_remainder: int) -> None:
        self.pool = pool
        self.stream = stream
        self.smallest_remainder = smallest_remainder
        self.keys: list[int] = []
        self.free: dict[int, Block] = {}
        self.unmapped_addresses: list[int] = []
        self.unmapped: dict[int, Block] = {}

    def blocks(self) -> list[Block]:
        """The free blocks, smallest first."""
        return [self.free[key] for key in self.keys]

    def insert(self, block: Block) -> None:
        """Add a free block."""
        block.state = FREE
        block.age = self.pool.searches
        key = block.size << ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.free[key] = block

    def remove(self, block: Block) -> None:
        """Remove a free block."""
        key = block.size << ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.free[key]

    def insert_unmapped(self, block: Block) -> None:
        block.state = UNMAPPED
        insort(self.unmapped_addresses, block.address)
        self.unmapped[block.address] = block

    def remove_unmapped(self, block: Block) -> None:
        del self.unmapped_addresses[bisect_left(self.unmapped_addresses, block.address)]
        del self.unmapped[block.address]


@dataclass(frozen=True, slots=True)
class ExpandableSegment:
    """A reserved range of addresses that is mapped in pages of ``page_bytes``."""

    address: int
    size: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """A block as ``torch.cuda.memory._snapshot()`` shows it; bytes."""

    address: int
    size: int
    requested_size: int
    state: str


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment as ``torch.cuda.memory._snapshot()`` shows it; bytes. ``pool`` is "small" or "large".

    An expandable segment gives one record for each contiguous range of mapped pages.
    """

    address: int
    total_size: int
    stream: int
    pool: str
    is_expandable: bool
    blocks: tuple[BlockRecord, ...]
