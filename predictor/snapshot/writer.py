"""Writes a predicted history as the snapshot that a recording of it would be.

PyTorch's own readers open it: ``python -m torch.cuda._memory_viz`` and the page pytorch.org/memory_viz. Their
stack of an entry shows what peakcast knows instead: operator, module, factor and moment, a line each.
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
"""The newest that the web viewer reads (``unpickle`` in torch/utils/viz/MemoryViz.js, PyTorch 2.11)."""

UNKNOWN = "unknown"
"""A category that some entry must have where others have categories: ``annotate_snapshot`` in MemoryViz.js
(PyTorch 2.11) raises without one. Segments have it."""

NO_FRAMES: list[dict[str, Any]] = []


class BlockLike(Protocol):
    """A block of :class:`SegmentLike`, in bytes; ``state`` is one of :class:`State` or its text."""

    address: int
    size: int
    requested_size: int
    state: str


class SegmentLike(Protocol):
    """A segment as the simulation lists it at the end, in bytes; ``pool`` is "small" or "large"."""

    address: int
    total_size: int
    stream: int
    pool: str
    is_expandable: bool
    blocks: Iterable[BlockLike]


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing the allocator did.

    Attributes:
        action: ALLOC, FREE_REQUESTED and FREE_COMPLETED name blocks, SEGMENT_… segments.
        address: of the block or segment; for OOM the bytes that the driver had left.
        size: of a block what was requested, of a segment all of it, for OOM what was asked for; bytes.
        tag: for what, of a free its allocation's; None for a segment, or where it is unknown.
    """

    action: Action
    address: int
    size: int
    stream: int = 0
    tag: Tag | None = None


def snapshot_of(segments: Iterable[SegmentLike], entries: Iterable[Entry], *, device: int = 0,
                settings: Mapping[str, Any] | None = None, total_bytes: int | None = None) -> dict[str, Any]:
    """The dictionary that ``torch.cuda.memory._snapshot()`` would return; its keys and those of its parts are
    PyTorch 2.11's (``THCPModule_memorySnapshot`` in torch/csrc/cuda/Module.cpp), and one is peakcast's: TOTAL_BYTES.

    Args:
        segments: what the allocator holds after the last entry, in its order.
        entries: what it did, in order; entry i is given the time of i microseconds.
        device: the GPU's number.
        settings: ``allocator_settings``, in PyTorch's own keys.
        total_bytes: the device's memory; a replay of expandable segments needs it.
    """
    trace, annotations, names = [], [], _Names()
    tags: dict[int, Tag | None] = {}
    now: tuple[str, int] | None = None
    for time_us, entry in enumerate(entries):
        place = now
        if entry.action is Action.ALLOC:
            tags[entry.address] = entry.tag
            place = (entry.tag.moment.value, entry.tag.step) if entry.tag else now
        if place != now:
            annotations += [_annotation(device, now, "END", time_us)] if now else []
            annotations.append(_annotation(device, place, "START", time_us))
            now = place
        trace.append(_entry(entry, time_us, names))
    annotations += [_annotation(device, now, "END", len(trace))] if now else []
    return {
        "segments": [_segment(segment, device, tags, names) for segment in segments],
        "device_traces": [[] for _ in range(device)] + [trace],
        "allocator_settings": dict(settings or {}),
        "external_annotations": annotations,
        TOTAL_BYTES: [None] * device + [total_bytes],
    }


def allocator_settings(settings: AllocatorSettings) -> dict[str, Any]:
    """Settings in PyTorch's own keys; those that do not change device memory as they are by default."""
    limit = settings.max_split_size_bytes
    return {
        "PYTORCH_CUDA_ALLOC_CONF": str(settings), "max_split_size": -1 if limit == UNLIMITED else limit,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments, "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {str(1 << i): n for i, n in enumerate(settings.roundup_power2_divisions)}}


def write(path: str, snapshot: Mapping[str, Any]) -> None:
    """Writes a whole file or nothing.

    Raises:
        InputError: it cannot be written there.
    """
    write_whole(path, pickle.dumps(dict(snapshot), protocol=PICKLE_PROTOCOL))


class _Names:
    """Frames and metadata of each tag, made once: the pickle then holds them once, too."""

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
