"""Writes a predicted history as a snapshot file in PyTorch's format.

PyTorch's own readers open it: ``python -m torch.cuda._memory_viz`` and the page pytorch.org/memory_viz. In place of an
entry's stack they show what peakcast knows: operator, module, factor and moment, one line each.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from predictor.allocator import AllocatorSettings
from predictor.allocator.constants import UNLIMITED
from predictor.common.files import write_whole
from predictor.events.events import Tag
from predictor.snapshot.reader import TOTAL_BYTES
from predictor.snapshot.records import Action, State

PICKLE_PROTOCOL = 4
"""The newest protocol that the web viewer reads (``unpickle`` in torch/utils/viz/MemoryViz.js, PyTorch 2.11)."""

UNKNOWN = "unknown"
"""The category of segments. If any entry has a category, some entry must have this one: ``annotate_snapshot`` in
MemoryViz.js (PyTorch 2.11) fails otherwise."""

NO_FRAMES: list[dict[str, Any]] = []


class BlockLike(Protocol):
    """A block of :class:`SegmentLike`; sizes in bytes. ``state`` is a :class:`State` or its text."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def requested_size(self) -> int: ...
    @property
    def state(self) -> str: ...


class SegmentLike(Protocol):
    """A segment of the simulation at the end; sizes in bytes. ``pool`` is "small" or "large"."""

    @property
    def address(self) -> int: ...
    @property
    def total_size(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def pool(self) -> str: ...
    @property
    def is_expandable(self) -> bool: ...
    @property
    def blocks(self) -> Iterable[BlockLike]: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One action of the allocator.

    Attributes:
        action: ALLOC, FREE_REQUESTED and FREE_COMPLETED concern blocks, SEGMENT_… concern segments.
        address: the address of the block or segment. For OOM: the bytes that the driver had left.
        size: the requested bytes of a block, all bytes of a segment; for OOM, the rounded request in bytes.
        tag: the tag of the allocation, also for its free. None for a segment, or if unknown.
    """

    action: Action
    address: int
    size: int
    stream: int = 0
    tag: Tag | None = None


def snapshot_of(segments: Iterable[SegmentLike], entries: Iterable[Entry], *, device: int = 0,
                settings: Mapping[str, Any] | None = None, total_bytes: int | None = None) -> dict[str, Any]:
    """The dictionary that ``torch.cuda.memory._snapshot()`` would return.

    Its keys are those of PyTorch 2.11 (``THCPModule_memorySnapshot`` in torch/csrc/cuda/Module.cpp), and peakcast's
    TOTAL_BYTES.

    Args:
        segments: the allocator's segments after the last entry, in its order.
        entries: the history in order. Entry i gets the time of i microseconds.
        device: the GPU's number.
        settings: ``allocator_settings``, in PyTorch's own keys.
        total_bytes: the device's memory. A replay of expandable segments needs it.
    """
    trace, annotations, names = [], [], _Names()
    tags: dict[int, Tag | None] = {}
    current: tuple[str, int] | None = None
    for time_us, entry in enumerate(entries):
        place = current
        if entry.action is Action.ALLOC:
            tags[entry.address] = entry.tag
            place = (entry.tag.moment.value, entry.tag.step) if entry.tag else current
        if place is not None and place != current:
            annotations += [_annotation(device, current, "END", time_us)] if current else []
            annotations.append(_annotation(device, place, "START", time_us))
            current = place
        trace.append(_entry(entry, time_us, names))
    annotations += [_annotation(device, current, "END", len(trace))] if current else []
    return {
        "segments": [_segment(segment, device, tags, names) for segment in segments],
        "device_traces": [[] for _ in range(device)] + [trace],
        "allocator_settings": dict(settings or {}),
        "external_annotations": annotations,
        TOTAL_BYTES: [None] * device + [total_bytes],
    }


def allocator_settings(settings: AllocatorSettings) -> dict[str, Any]:
    """The settings in PyTorch's own keys. Keys that do not change device memory get their default values."""
    limit = settings.max_split_size_bytes
    return {
        "PYTORCH_CUDA_ALLOC_CONF": str(settings), "max_split_size": -1 if limit == UNLIMITED else limit,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments, "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {str(1 << i): n for i, n in enumerate(settings.roundup_power2_divisions)}}


def write(path: str, snapshot: Mapping[str, Any]) -> None:
    """Writes a snapshot file atomically.

    Raises:
        InputError: the file cannot be written there.
    """
    write_whole(path, pickle.dumps(dict(snapshot), protocol=PICKLE_PROTOCOL))


class _Names:
    """Frames and metadata of each tag. Each is made once, so that the pickle contains it only once."""

    def __init__(self) -> None:
        self._frames: dict[Tag, list[dict[str, Any]]] = {}
        self._texts: dict[Tag, str] = {}

    def frames(self, tag: Tag | None) -> list[dict[str, Any]]:
        if tag is None:
            return NO_FRAMES
        if tag not in self._frames:
            self._frames[tag] = [
                {"filename": "operator", "line": 0, "name": tag.operator},
                {"filename": "module", "line": 0, "name": tag.module or "(none)"},
                {"filename": "factor", "line": 0, "name": tag.factor.value},
                {"filename": "moment of step", "line": tag.step, "name": tag.moment.value},
            ]
        return self._frames[tag]

    def text(self, tag: Tag | None) -> str:
        if tag is None:
            return ""
        if tag not in self._texts:
            self._texts[tag] = json.dumps({"moment": tag.moment.value, "step": tag.step, "module": tag.module,
                                           "operator": tag.operator, "factor": tag.factor.value})
        return self._texts[tag]


def _entry(entry: Entry, time_us: int, names: _Names) -> dict[str, Any]:
    result = {
        "action": entry.action.name.lower(),
        "device_free" if entry.action is Action.OOM else "addr": int(entry.address),
        "size": int(entry.size), "stream": int(entry.stream), "time_us": time_us, "compile_context": "N/A",
        "user_metadata": names.text(entry.tag), "frames": names.frames(entry.tag)}
    if entry.action is Action.ALLOC:
        result["category"] = entry.tag.factor.value if entry.tag else UNKNOWN
    elif entry.action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
        result["category"] = UNKNOWN
    return result


def _segment(segment: SegmentLike, device: int, tags: Mapping[int, Tag | None], names: _Names) -> dict[str, Any]:
    blocks, sums = [], dict.fromkeys(("allocated_size", "active_size", "requested_size"), 0)
    for block in segment.blocks:
        state, size, requested = State(block.state), int(block.size), int(block.requested_size)
        tag = None if state is State.FREE else tags.get(block.address)
        blocks.append({"address": int(block.address), "size": size, "requested_size": requested,
                       "state": state.value, "frames": names.frames(tag)})
        if state is not State.FREE:
            sums["active_size"] += size
            sums["requested_size"] += requested
        if state is State.ALLOCATED:
            sums["allocated_size"] += size
    return {"device": device, "address": int(segment.address), "total_size": int(segment.total_size), **sums,
            "stream": int(segment.stream), "segment_type": str(segment.pool), "segment_pool_id": (0, 0),
            "is_expandable": bool(segment.is_expandable), "frames": NO_FRAMES, "blocks": blocks}


def _annotation(device: int, place: tuple[str, int], stage: str, time_us: int) -> dict[str, Any]:
    moment, step = place
    return {"device": device, "name": f"step {step}: {moment}" if step else moment, "stage": stage, "time_us": time_us}
