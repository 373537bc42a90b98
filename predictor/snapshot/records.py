"""Frozen records of a snapshot's content. The history is stored as columns: it can have millions of entries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import numpy as np


class Action(IntEnum):
    """An action of the allocator (``TraceEntry::Action``, c10/cuda/CUDACachingAllocator.h, PyTorch 2.11)."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    USER_DEFINED = 9


class State(str, Enum):
    """The state of a block: in use, freed but waiting for other streams, or free."""

    ALLOCATED = "active_allocated"
    PENDING = "active_pending_free"
    FREE = "inactive"


MOST_FRAMES = 1_000
"""Limit on the frames of one stack, the same as the interpreter's default recursion limit."""
LONGEST_METADATA = 10_000
"""Limit on the characters of an entry's metadata that are parsed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python or C++ stack."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """The text that ``peakcast measure --snapshot`` adds to each entry: its place in the job."""

    moment: str
    step: int
    module: str
    operator: str


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a segment; sizes in bytes.

    Attributes:
        requested_size: requested bytes. For a free block: the request of its last user.
        raw_frames: the stack as in the file. :func:`frames` converts it to :class:`Frame`.
    """

    address: int
    size: int
    requested_size: int
    state: State
    raw_frames: Any = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that the allocator got from the driver; sizes in bytes.

    Attributes:
        pool: "small" or "large".
        pool_id: (0, 0) for the default pools. Another id belongs to a CUDA graph or a ``MemPool``.
    """

    device: int
    address: int
    total_size: int
    stream: int
    pool: str
    pool_id: tuple[int, int]
    is_expandable: bool
    blocks: tuple[Block, ...]

    @property
    def end(self) -> int:
        """The first address behind the segment."""
        return self.address + self.total_size

    @property
    def allocated_size(self) -> int:
        """Bytes in blocks that are in use."""
        return sum(block.size for block in self.blocks if block.state is State.ALLOCATED)

    @property
    def active_size(self) -> int:
        """Bytes in blocks that are in use or wait for other streams."""
        return sum(block.size for block in self.blocks if block.state is not State.FREE)


@dataclass(frozen=True, eq=False)
class Trace:
    """The recorded history of one device, as columns of equal length.

    Attributes:
        action: ``int8[n]``, values of :class:`Action`.
        address: ``int64[n]``. Where the action is OOM: the bytes that the driver had left.
        size: ``int64[n]``, requested bytes of a block, or bytes of a segment.
        stream: ``int64[n]``, the handle of the CUDA stream.
        time_us: ``int64[n]``, 0 where the recording has no times (before PyTorch 2.2).
        raw_frames: the stacks as in the file. :func:`frames` converts one to :class:`Frame`.
        user_metadata: the metadata text that was set when the entry was recorded, often empty.
    """

    action: np.ndarray
    address: np.ndarray
    size: np.ndarray
    stream: np.ndarray
    time_us: np.ndarray
    raw_frames: tuple[Any, ...]
    user_metadata: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.action)

    def metadata(self, index: int) -> Metadata | None:
        """The metadata of an entry if ``peakcast measure`` wrote it, else None."""
        text = self.user_metadata[index]
        if not text.startswith("{") or len(text) > LONGEST_METADATA:
            return None
        try:
            value = json.loads(text)
            return Metadata(str(value["moment"]), int(value["step"]), str(value["module"]), str(value["operator"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def frames(self, index: int) -> tuple[Frame, ...]:
        """The stack of an entry, innermost frame first."""
        return frames(self.raw_frames[index])


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A whole snapshot.

    Attributes:
        segments: the segments of all devices, in the file's order.
        traces: one trace for each device, by its number. A trace is empty where nothing was recorded.
        settings: ``allocator_settings`` as in the file, empty before PyTorch 2.2.
        total_bytes: device -> its memory in bytes. Only snapshots that peakcast wrote contain it.
        beside: the notes of ``peakcast measure`` about the history, unchecked, as in the file; None without.
    """

    segments: tuple[Segment, ...]
    traces: tuple[Trace, ...]
    settings: Mapping[str, Any]
    total_bytes: Mapping[int, int] = field(default_factory=dict)
    beside: Any = None

    def segments_of(self, device: int) -> tuple[Segment, ...]:
        """The segments of one device."""
        return tuple(segment for segment in self.segments if segment.device == device)


def frames(raw: Any) -> tuple[Frame, ...]:
    """Converts the innermost frames of a stack. Frames with missing or wrong fields are left out."""
    if not isinstance(raw, (list, tuple)):
        return ()
    return tuple(
        Frame(frame["filename"], frame["line"], frame["name"]) for frame in raw[:MOST_FRAMES]
        if isinstance(frame, dict) and isinstance(frame.get("filename"), str)
        and isinstance(frame.get("name"), str) and isinstance(frame.get("line"), int))
