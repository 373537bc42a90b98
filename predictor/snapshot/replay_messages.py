"""What a replay compares, and says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from predictor.snapshot.recorded_driver import ELSEWHERE
from predictor.snapshot.records import State

MANY = 4
"""Blocks or segments that a message lists."""


class SegmentEvent(NamedTuple):
    """A segment comes or goes, as the allocator tells its observer."""

    action: str
    address: int
    size: int
    stream: int


def layout(segment: Any, stream: int) -> tuple[Any, ...]:
    """What must be equal: all but what the last user of a free block asked for."""
    return stream, segment.total_size, tuple(
        (b.address - segment.address, b.size, 0 if b.state == State.FREE else b.requested_size, State(b.state).value)
        for b in segment.blocks)


def blocks_text(found: tuple[Any, ...] | None) -> str:
    """Such a layout in words."""
    if found is None:
        return "nothing"
    blocks = [f"{size:,} {'free' if state == State.FREE else 'in use'}" for _, size, _, state in found[2]]
    return f"{found[1]:,} bytes: {_some(blocks)}"


def events_text(events: Sequence[SegmentEvent]) -> str:
    """Such events in words; addresses only where the recording could have them."""
    return _some([f"{event.action} of {event.size:,} bytes" + (
        f" at {event.address:#x}" if event.address < ELSEWHERE else "") for event in events]) or "no segment"


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:MANY]) + (f" and {len(texts) - MANY} more" if len(texts) > MANY else "")
