"""Memory histories for tests: recorded ones, and hand-made ones from the simulation."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from predictor.allocator import AllocatorSettings, SimulatedDriver
from predictor.snapshot.reader import parse
from predictor.snapshot.recording import RecordingAllocator
from predictor.snapshot.replay import Replay, replay

RECORDED = Path(__file__).parents[1] / "data" / "snapshots"
MIB = 1 << 20


def recorded(name: str) -> Path:
    """The path of a kept recording."""
    return RECORDED / f"{name}.pickle.xz"


def steps() -> RecordingAllocator:
    """Two segments, then a third: 30 MiB, 5 MiB and 4 MiB in 20 MiB of which 5 MiB are freed, 1,000 bytes."""
    allocator = RecordingAllocator()
    allocator.malloc(30 * MIB)
    first = allocator.malloc(5 * MIB)
    allocator.malloc(4 * MIB)
    allocator.free(first)
    allocator.malloc(1000)
    return allocator


def mapped(total_bytes: int) -> RecordingAllocator:
    """Expandable segments of a device of so many bytes, small enough that two ranges are needed."""
    allocator = RecordingAllocator(AllocatorSettings(expandable_segments=True), SimulatedDriver(total_bytes))
    blocks = [allocator.malloc(20 * MIB) for _ in range(5)]
    for block in blocks[:4:2]:
        allocator.free(block)
    allocator.empty_cache()
    allocator.malloc(40 * MIB)
    return allocator


def raw(allocator: RecordingAllocator, since: int = 0, **changes: Any) -> dict[str, Any]:
    """The snapshot as a file would hold it, with the history from one entry on only."""
    value = pickle.loads(pickle.dumps(allocator.snapshot()))
    value["device_traces"][0] = value["device_traces"][0][since:]
    return value | changes


def replayed(value: dict[str, Any], **options: Any) -> Replay:
    """Such a snapshot, replayed."""
    return replay(parse(value), **options)
