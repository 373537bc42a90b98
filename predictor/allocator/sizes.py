"""Rounds a request to the size of its block, and a block to the size of its segment. All sizes are bytes.

Source: round_size, roundup_power2_next_division and get_allocation_size, CUDACachingAllocator.cpp;
roundup_power2_divisions(size), AllocatorConfig.cpp; PyTorch 2.11.
"""

from __future__ import annotations

from predictor.allocator.constants import (
    LARGE_REQUEST,
    LARGE_ROUNDING,
    MIN_BLOCK,
    ROUNDUP_INTERVALS,
    ROUNDUP_START_LOG2,
    SMALL_SEGMENT,
    SMALL_SIZE,
)
from predictor.allocator.settings import AllocatorSettings


def round_to_division(size: int, divisions: tuple[int, ...]) -> int:
    """A request rounded up with roundup_power2_divisions: to the next of equal steps between two powers of 2.

    Small requests, and those without divisions, are rounded up to a multiple of 512 bytes.
    """
    log2 = size.bit_length() - 1
    steps = divisions[min(max(log2 - ROUNDUP_START_LOG2, 0), ROUNDUP_INTERVALS - 1)]
    if steps <= 1 or size <= MIN_BLOCK * steps:
        return -(-size // MIN_BLOCK) * MIN_BLOCK
    step = (1 << log2) // steps
    return -(-size // step) * step


def segment_size(rounded: int, settings: AllocatorSettings) -> int:
    """The size of the segment that cudaMalloc allocates for a block of that size."""
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded < LARGE_REQUEST:
        return settings.large_segment_size_bytes
    return -(-rounded // LARGE_ROUNDING) * LARGE_ROUNDING
