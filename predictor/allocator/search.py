"""Which free block serves a request, where there are more rules than best fit.

Source: get_free_block, CUDACachingAllocator.cpp, PyTorch 2.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.allocator.blocks import UNMAPPED, Arena, Block

if TYPE_CHECKING:
    from predictor.allocator.allocator import CachingAllocator


def choose(allocator: CachingAllocator, arena: Arena, size: int, at: int) -> int:
    """The index in ``arena.keys`` of the block to take, given that of the best fit; their number if none will do."""
    arena.pool.searches += allocator.collects
    keys, settings = arena.keys, allocator.settings
    if at < len(keys) and arena.free[keys[at]].expandable is not None:
        at = _expandable(arena, at) if settings.expandable_segments else _not_expandable(arena, at)
    if at == len(keys):
        return at
    found, limit = arena.free[keys[at]].size, settings.max_split_size_bytes
    if size < limit:
        return at if found < limit else len(keys)
    return at if found < size + settings.max_non_split_rounding_bytes else len(keys)


def _expandable(arena: Arena, at: int) -> int:
    """Best fit by the size a block can grow to: go on while the next larger block could grow less."""
    block = arena.free[arena.keys[at]]
    while block.expandable is not None and at + 1 < len(arena.keys):
        following = arena.free[arena.keys[at + 1]]
        if _reach(following) >= _reach(block):
            break
        block = following
        at += 1
    return at


def _not_expandable(arena: Arena, at: int) -> int:
    """Expandable segments were switched off while some exist: theirs are passed over."""
    while at < len(arena.keys) and arena.free[arena.keys[at]].expandable is not None:
        at += 1
    return at


def _reach(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and following.state == UNMAPPED else 0)
