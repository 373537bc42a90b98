"""Layouts of segments that a replay compares, and the texts of their differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from predictor.snapshot.recorded_driver import ELSEWHERE
from predictor.snapshot.records import State

MANY = 4
"""The most blocks or segments that a message lists."""


class SegmentEvent(NamedTuple):
    """The allocation or release of a segment, as the allocator passes it to its observer."""

    action: str
    address: int
    size: int
    stream: int


def layout(segment: Any, stream: int) -> tuple[Any, ...]:
    """The parts of a segment that must be equal: all but the last request of a free block."""
    return stream, segment.total_size, tuple(
        (b.address - segment.address, b.size, 0 if b.state == State.FREE else b.requested_size, State(b.state).value)
        for b in segment.blocks)


def blocks_text(segment_layout: tuple[Any, ...] | None) -> str:
    """A :func:`layout` in words."""
    if segment_layout is None:
        return "nothing"
    _, total_size, parts = segment_layout
    blocks = [f"{size:,} {'free' if state == State.FREE else 'in use'}" for _, size, _, state in parts]
    return f"{total_size:,} bytes: {_some(blocks)}"


def events_text(events: Sequence[SegmentEvent]) -> str:
    """Segment events in words. Addresses that the simulation made up are left out."""
    return _some([f"{event.action} of {event.size:,} bytes" + (
        f" at {event.address:#x}" if event.address < ELSEWHERE else "") for event in events]) or "no segment"


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:MANY]) + (f" and {len(texts) - MANY} more" if len(texts) > MANY else "")
