"""A job that ran out of memory in a memory snapshot: the blocks in use, by the code that allocated them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor.allocator import AllocatorSettings
from predictor.common.errors import InputError
from predictor.oom.message import Message
from predictor.oom.stack import EMULATOR
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.snapshot.initial_state import Inconsistent, start_of
from predictor.snapshot.records import Action, Snapshot, State, Trace, frames
from predictor.snapshot.replay import settings_of
from predictor.snapshot.what_if import WhatIf, what_if

UNKNOWN = "unknown"
"""The place of blocks whose stack was not recorded."""
_TORCH = re.compile(rf"/(?:site-packages|dist-packages)/torch/|{EMULATOR}|^<|^\?\?$")

_NODE = re.compile(r"torch::autograd::generated::(\w+)::apply\(")
_ENGINE = re.compile(r"torch::autograd::Engine::thread_main\(")
"""Frames of autograd's own threads, which run no code of the user (torch/csrc/autograd/engine.cpp, PyTorch 2.11)."""


@dataclass(frozen=True)
class Allocations:
    """The blocks in use that one line of code allocated; requested bytes."""

    place: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class RecordedFailure:
    """The state of a recorded job at its first failed allocation, or at the end of the recording. Sizes in bytes.

    Attributes:
        device: number of the device.
        entry: the failed allocation's place in the history; None for the end of the recording.
        requested_bytes, allocated_bytes, reserved_bytes, free_bytes: the request, PyTorch's memory, and what the
            driver had left; None at the end of the recording, apart from PyTorch's memory.
        allocations: the blocks in use by line of code, the largest first; if no allocation failed, those of the
            recording's highest point.
        highest_entry: the place of that point in the history; None if an allocation failed, or without a history.
        what_if: the same history with expandable segments; None if the recording had them, or if ``obstacle`` says
            why not.
        obstacle: the reason why the history could not be played; empty if it could.
    """

    device: int
    entry: int | None
    requested_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int | None
    allocations: tuple[Allocations, ...]
    what_if: WhatIf | None
    obstacle: str
    highest_entry: int | None = None

    @property
    def fits_unfragmented(self) -> bool | None:
        """Whether the request is no more than all free memory together, PyTorch's and the driver's; None at the end."""
        if self.requested_bytes is None or self.free_bytes is None:
            return None
        return self.requested_bytes <= self.reserved_bytes - self.allocated_bytes + self.free_bytes

    def is_of(self, message: Message) -> bool | None:
        """Whether it is the failure that a message reports, by the bytes that were allocated; None if one has none."""
        if self.entry is None or message.allocated is None:
            return None
        return message.allocated.may_be(self.allocated_bytes)


def recorded_failure(snapshot: Snapshot, device: int) -> RecordedFailure:
    """The first failed allocation of a recorded job, with the blocks in use.

    Raises:
        InputError: the snapshot has no such device, or settings that are not simulated.
    """
    settings = settings_of(snapshot.settings)
    segments = snapshot.segments_of(device)
    active, reserved = (sum(getattr(segment, name) for segment in segments) for name in ("active_size", "total_size"))
    played = other = None
    obstacle = ""
    try:
        played = what_if(snapshot, device, settings)
        if not settings.expandable_segments:
            other = what_if(snapshot, device, AllocatorSettings(expandable_segments=True),
                            outside_bytes=ASSUMED_RUNTIME_BYTES)
    except InputError as error:
        obstacle = str(error)
    failure = None if played is None else played.failure
    if played is None or failure is None or played.limit_bytes is None:
        highest = None if obstacle else _highest_entry(snapshot.traces[device])
        blocks = _at_end(snapshot, device) if highest is None else _at_entry(snapshot, device, highest)
        return RecordedFailure(device, None, None, active, reserved, None, blocks, other, obstacle, highest)
    return RecordedFailure(device, failure.entry, failure.requested_bytes, failure.allocated_bytes,
                           failure.reserved_bytes, played.limit_bytes - failure.reserved_bytes,
                           _at_entry(snapshot, device, failure.entry), other, obstacle)


def _at_end(snapshot: Snapshot, device: int) -> tuple[Allocations, ...]:
    """The blocks that the snapshot lists as in use."""
    return _grouped((place(block.raw_frames), block.requested_size) for segment in snapshot.segments_of(device)
                    for block in segment.blocks if block.state is State.ALLOCATED)


def _highest_entry(trace: Trace) -> int | None:
    """The entry of the history right before which most bytes were in use; None if nothing is allocated in it."""
    allocates = trace.action == Action.ALLOC
    if not allocates.any():
        return None
    signs = allocates.astype(np.int64) - (trace.action == Action.FREE_REQUESTED)
    return int(np.argmax(np.cumsum(signs * trace.size))) + 1


def _at_entry(snapshot: Snapshot, device: int, entry: int) -> tuple[Allocations, ...]:
    """The blocks in use right before an entry of the history.

    The stack of a block from before the recording is only known if the block lives to its end.
    """
    trace, segments = snapshot.traces[device], snapshot.segments_of(device)
    largest_split = settings_of(snapshot.settings).max_split_size_bytes
    try:
        start = start_of(trace, segments, lambda size: size, largest_split).segments
    except Inconsistent as error:
        raise InputError(f"its history does not lead to the segments it lists: {error}") from None
    last = {block.address: block.raw_frames for segment in segments for block in segment.blocks}
    touched = set(trace.address[np.isin(trace.action, (Action.ALLOC, Action.FREE_REQUESTED))].tolist())
    alive: dict[int, tuple[int, str]] = {
        block.address: (block.requested_size,
                        UNKNOWN if block.address in touched else place(last.get(block.address)))
        for segment in start for block in segment.blocks if block.state is State.ALLOCATED}
    columns = zip(trace.action[:entry].tolist(), trace.address[:entry].tolist(), trace.size[:entry].tolist())
    for index, (action, address, size) in enumerate(columns):
        if action == Action.ALLOC:
            metadata = trace.metadata(index)
            where = place(trace.raw_frames[index])
            alive[address] = size, metadata.module or metadata.operator if metadata and where == UNKNOWN else where
        elif action == Action.FREE_REQUESTED:
            alive.pop(address, None)
    return _grouped((where, size) for size, where in alive.values())


def place(raw: Any) -> str:
    """The innermost line of Python outside of PyTorch in a stack: ``model.py:12 forward``. Without one, of any code.

    Frames of the emulated GPU are not the user's either. Of autograd's threads it is the node: ``backward:
    AddmmBackward0``.
    """
    stack = [frame for frame in frames(raw) if frame.name]
    python = [frame for frame in stack if frame.filename.endswith(".py")]
    chosen = next((frame for frame in python if not _TORCH.search(frame.filename)), None)
    if chosen is None and any(_ENGINE.search(frame.name) for frame in stack):
        node = next((match[1] for frame in stack if (match := _NODE.search(frame.name))), "")
        return f"backward: {node}" if node else "backward"
    chosen = chosen or next(iter(python or stack), None)
    if chosen is None:
        return UNKNOWN
    return f"{chosen.filename}:{chosen.line} {chosen.name}" if chosen in python else chosen.name


def _grouped(blocks: Iterable[tuple[str, int]]) -> tuple[Allocations, ...]:
    sizes: dict[str, list[int]] = {}
    for where, size in blocks:
        sizes.setdefault(where, []).append(size)
    groups = [Allocations(where, sum(listed), len(listed)) for where, listed in sizes.items()]
    return tuple(sorted(groups, key=lambda group: (-group.bytes, group.place)))
