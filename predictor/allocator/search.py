"""Chooses the free block for a request where more rules than best fit apply.

Such rules come from expandable segments, ``max_split_size_mb`` and garbage collection.

Source: get_free_block, CUDACachingAllocator.cpp, PyTorch 2.11.
"""

from __future__ import annotations

from predictor.allocator.blocks import UNMAPPED, Arena, Block
from predictor.allocator.state import AllocatorState


def choose(allocator: AllocatorState, arena: Arena, size: int, index: int) -> int:
    """The index in ``arena.keys`` of the block to take, or ``len(arena.keys)`` if none is suitable.

    ``size`` is the rounded request in bytes, ``index`` that of the best fit.
    """
    arena.pool.searches += allocator.collects_garbage
    keys, settings = arena.keys, allocator.settings
    if index < len(keys) and arena.free[keys[index]].expandable is not None:
        index = _expandable(arena, index) if settings.expandable_segments else _not_expandable(arena, index)
    if index == len(keys):
        return index
    block_size, limit = arena.free[keys[index]].size, settings.max_split_size_bytes
    if size < limit:
        return index if block_size < limit else len(keys)
    return index if block_size < size + settings.max_non_split_rounding_bytes else len(keys)


def _expandable(arena: Arena, index: int) -> int:
    """Best fit by the size that a block can grow to: continue while the next larger block could grow less."""
    block = arena.free[arena.keys[index]]
    while block.expandable is not None and index + 1 < len(arena.keys):
        following = arena.free[arena.keys[index + 1]]
        if _size_with_growth(following) >= _size_with_growth(block):
            break
        block = following
        index += 1
    return index


def _not_expandable(arena: Arena, index: int) -> int:
    """Skip blocks of expandable segments: the setting was switched off while some exist."""
    while index < len(arena.keys) and arena.free[arena.keys[index]].expandable is not None:
        index += 1
    return index


def _size_with_growth(block: Block) -> int:
    """Bytes of a block and of the unmapped block behind it."""
    following = block.next
    return block.size + (following.size if following is not None and following.state == UNMAPPED else 0)
