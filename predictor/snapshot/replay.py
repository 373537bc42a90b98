"""Replays a recorded history in the simulated caching allocator and compares every decision.

The recording provides the requests, the frees, the completion of deferred frees, and the points at which the driver
refused memory or the program emptied the cache. The simulation decides the address of each block, the need for a new
segment and its size, the splits and merges, and the memory to give back after a refusal. Each of these decisions is
compared with the recorded one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from predictor.allocator import AllocatorSettings
from predictor.allocator.constants import MIB, UNLIMITED
from predictor.allocator.sizes import round_to_division
from predictor.common.errors import InputError
from predictor.common.suggestions import quoted
from predictor.snapshot.initial_state import Inconsistent, start_of
from predictor.snapshot.records import Action, Segment, Snapshot, State, Trace
from predictor.snapshot.replay_pass import GIVEN_BACK, NEW, Contradiction, Divergence, Run

KEY = re.compile("[0-9]{1,9}")
"""A key of ``roundup_power2_divisions``: a power of 2, in MiB."""


@dataclass(frozen=True)
class Totals:
    """Bytes at one point of a history."""

    requested_bytes: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class Recorded:
    """Totals and peaks computed from the recording itself, in bytes.

    Attributes:
        segments: bytes of each segment at the beginning, by address, then of each new segment in order.
        end: sums over the blocks and segments that the snapshot lists.
        out_of_memory: number of out-of-memory entries.
    """

    peak_requested_bytes: int
    peak_reserved_bytes: int
    segments: tuple[int, ...]
    end: Totals
    out_of_memory: int


@dataclass(frozen=True)
class Replay:
    """The result of a replay; sizes in bytes. ``segments`` has the simulated segments, as in :class:`Recorded`.

    Attributes:
        settings: the allocator's settings, as text.
        total_bytes: the device's memory, None if unknown.
        is_expandable: whether some segments are expandable. Then the result depends on the device's memory.
        start: the allocator's totals at the beginning of the recording.
        guesses: number of blocks at the beginning whose exact size the recording does not contain. They can cause a
            divergence.
        divergence: the first difference; None if all decisions and the state at the end agree.
    """

    device: int
    events: int
    settings: str
    total_bytes: int | None
    is_expandable: bool
    start: Totals
    guesses: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    segments: tuple[int, ...]
    end: Totals
    recorded: Recorded
    divergence: Divergence | None

    @property
    def agrees(self) -> bool | None:
        """Whether the simulation agrees with the recording. None if nothing was recorded."""
        return self.divergence is None if self.events else None


def replay(snapshot: Snapshot, device: int = 0, settings: AllocatorSettings | None = None,
           total_bytes: int | None = None) -> Replay:
    """Replays the history of one device.

    Args:
        snapshot: the snapshot that holds the history.
        device: the number of the device.
        settings: replace the settings in the snapshot.
        total_bytes: the device's memory. None means the value in the snapshot, or a large default if it has none. It
            sets the length of the address range of expandable segments, on which the allocator's choice depends.

    Raises:
        InputError: the history does not lead to the listed segments, the history contradicts itself, or the settings
            or the history are not simulated.
    """
    has_own_settings, has_own_total = settings is not None, total_bytes is not None
    settings = settings_of(snapshot.settings) if settings is None else settings
    if device >= len(snapshot.traces):
        raise InputError(f"it has no device {device}: it lists {len(snapshot.traces)} device(s)")
    trace, segments = snapshot.traces[device], snapshot.segments_of(device)
    total_bytes = snapshot.total_bytes.get(device) if total_bytes is None else total_bytes
    divisions = settings.roundup_power2_divisions
    try:
        start = start_of(trace, segments, lambda size: round_to_division(size, divisions),
                         settings.max_split_size_bytes)
    except Inconsistent as error:
        cure = "take the snapshot before recording stops, and while no other thread allocates"
        raise InputError(f"its history does not lead to the segments it lists: {error}; "
                         f"{'it was recorded with other allocator settings' if has_own_settings else cure}") from None
    is_expandable = settings.expandable_segments or any(
        segment.is_expandable for segment in (*segments, *start.segments))
    if start.handles and is_expandable:
        raise InputError("it has private pools (CUDA graphs, MemPool) in expandable segments, which are not simulated")
    try:
        run = Run(settings, start, total_bytes)
        run.replay_entries(trace, start.streams)
    except Contradiction as error:
        other = ["other allocator settings"] * has_own_settings + ["another capacity"] * has_own_total
        cure = f"was it recorded with {' or '.join(other)}?" if other else "record it again"
        raise InputError(f"its history contradicts itself {error}: {cure}") from error
    run.compare_end(segments)
    simulation = run.allocator
    return Replay(
        device=device, events=len(trace), settings=str(settings), total_bytes=total_bytes,
        is_expandable=is_expandable, start=_totals(start.segments),
        guesses=start.guesses,
        peak_requested_bytes=simulation.peak_requested_bytes, peak_allocated_bytes=simulation.peak_allocated_bytes,
        peak_active_bytes=simulation.peak_active_bytes, peak_reserved_bytes=simulation.peak_reserved_bytes,
        segments=tuple(run.sizes), end=Totals(simulation.requested_bytes, simulation.allocated_bytes,
                                              simulation.active_bytes, simulation.reserved_bytes),
        recorded=_recorded(trace, start.segments, segments), divergence=run.divergence)


def settings_of(mapping: Mapping[str, Any]) -> AllocatorSettings:
    """The settings in a snapshot, or the default where it has none (before PyTorch 2.2).

    ``max_split_size`` is a 64-bit number of bytes, and -1 without a limit. It and ``roundup_power2_divisions`` are
    checked by the same rules as ``PYTORCH_CUDA_ALLOC_CONF``.

    Raises:
        InputError: a setting is not simulated or not understood.
    """
    text = mapping.get("PYTORCH_CUDA_ALLOC_CONF", "")
    settings = AllocatorSettings.parse(text if isinstance(text, str) else "")
    size, table = mapping.get("max_split_size", -1), mapping.get("roundup_power2_divisions", {})
    expandable = mapping.get("expandable_segments", settings.expandable_segments)
    if not _is_whole(size) or type(expandable) is not bool or not isinstance(table, Mapping) or not all(
            _is_whole(value) and isinstance(key, str) and KEY.fullmatch(key) for key, value in table.items()):
        raise InputError(f"its allocator_settings are not what PyTorch writes: {quoted(dict(mapping), 200)}")
    changes = []
    if size not in (-1, 0):
        mebibytes, rest = divmod(size % (UNLIMITED + 1), MIB)
        if rest:
            raise InputError(f"its allocator_settings: max_split_size {size:,} must be a whole number of MiB")
        changes.append(f"max_split_size_mb:{mebibytes}")
    changes += [f"roundup_power2_divisions:[{key}:{table[key]}]" for key in sorted(table, key=int)]
    checked = AllocatorSettings.parse(",".join([f"large_segment_size_mb:{settings.large_segment_size_bytes // MIB}",
                                                *changes]))
    if size not in (-1, 0):
        settings = replace(settings, max_split_size_bytes=checked.max_split_size_bytes)
    if len(table) == len(settings.roundup_power2_divisions):
        settings = replace(settings, roundup_power2_divisions=tuple(table[key] for key in sorted(table, key=int)))
    return replace(settings, expandable_segments=expandable)


def _is_whole(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value <= UNLIMITED


def _totals(segments: Iterable[Segment]) -> Totals:
    segments = tuple(segments)
    return Totals(
        sum(b.requested_size for s in segments for b in s.blocks if b.state is not State.FREE),
        sum(s.allocated_size for s in segments), sum(s.active_size for s in segments),
        sum(s.total_size for s in segments))


def _recorded(trace: Trace, start: Sequence[Segment], end: Sequence[Segment]) -> Recorded:
    """Computes peaks and totals from the entries of the recording alone."""
    initial = _totals(start)

    def highest(first: int, more: Iterable[Action], less: Iterable[Action]) -> int:
        change = np.isin(trace.action, list(more)).astype(np.int64) - np.isin(trace.action, list(less))
        return first + int(np.cumsum(change * trace.size).max(initial=0))

    new = trace.size[np.isin(trace.action, list(NEW))].tolist()
    return Recorded(
        peak_requested_bytes=highest(initial.requested_bytes, [Action.ALLOC], [Action.FREE_COMPLETED]),
        peak_reserved_bytes=highest(initial.reserved_bytes, NEW, GIVEN_BACK),
        segments=tuple([segment.total_size for segment in start] + new), end=_totals(end),
        out_of_memory=int((trace.action == Action.OOM).sum()))
