"""Plays a recorded history with other allocator settings, on a simulated device.

The recording provides what the program did: its allocations, its frees, and its calls of ``empty_cache()``. The
simulated allocator decides all the rest anew: addresses, segments, and what it gives back if the device refuses.

A history does not contain calls of ``empty_cache()``, only the segments that were given back; a call that gave nothing
back leaves no trace. Where new memory was needed right after, the device may have refused it first. The memory that
PyTorch could have tells which it was. Where that is not known, it is taken for a call of ``empty_cache()``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from predictor.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemory, SimulatedDriver
from predictor.allocator.blocks import PENDING
from predictor.allocator.constants import UNLIMITED_TOTAL
from predictor.allocator.sizes import round_to_division
from predictor.common.errors import InputError
from predictor.snapshot.initial_state import Inconsistent, Start, start_of
from predictor.snapshot.records import Action, Snapshot, Trace
from predictor.snapshot.replay import Totals, settings_of
from predictor.snapshot.replay_pass import GIVEN_BACK, NEW, PLAIN, TRIPPED
from predictor.snapshot.warm_start import seed


@dataclass(frozen=True)
class Failure:
    """The allocation that fails with other settings; sizes in bytes.

    Attributes:
        entry: its place in the history.
        is_recorded: whether it failed in the recording, too.
    """

    entry: int
    is_recorded: bool
    requested_bytes: int
    tried_to_allocate_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class WhatIf:
    """The result of playing a history with other settings; sizes in bytes.

    Attributes:
        settings, recorded_settings: the allocator's settings as text, here and in the recording.
        total_bytes: the device's memory; None if unknown.
        limit_bytes: the memory that PyTorch could have; None for no limit.
        outside_bytes: the memory outside PyTorch that was taken off the device's for this limit; None if the limit was
            given or recorded, or if there is none.
        start: the allocator's totals at the beginning of the recording. Its segments stay as they were recorded.
        perhaps_refused: how often memory was given back that is taken for a call of ``empty_cache()``, although the
            device may have refused memory.
        failures_avoided: the number of recorded out-of-memory errors that do not happen here.
        failure: the allocation that fails here and not in the recording, at which the play ends; without one the first
            that fails in both; None if none fails.
    """

    device: int
    events: int
    settings: str
    recorded_settings: str
    total_bytes: int | None
    limit_bytes: int | None
    outside_bytes: int | None
    start: Totals
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    segments: tuple[int, ...]
    end: Totals
    perhaps_refused: int
    failures_avoided: int
    failure: Failure | None


def what_if(snapshot: Snapshot, device: int, settings: AllocatorSettings, capacity_bytes: int | None = None,
            outside_bytes: int | None = None) -> WhatIf:
    """Plays the history of one device with other settings.

    Args:
        settings: replace those of the recording.
        capacity_bytes: the memory that PyTorch can have. None means what it had where the recording ran out of memory;
            where it never did, it is the device's memory in the snapshot less ``outside_bytes``, or what was reserved
            in the recording, if that is more. Without one of these there is no limit.
        outside_bytes: the device's memory that PyTorch is assumed not to get.

    Raises:
        InputError: the history does not lead to the listed segments, contradicts itself, has private pools, or the
            settings limit PyTorch to a part of a memory that is not known.
    """
    if device >= len(snapshot.traces):
        raise InputError(f"it has no device {device}: it lists {len(snapshot.traces)} device(s)")
    recorded = settings_of(snapshot.settings)
    trace, total = snapshot.traces[device], capacity_bytes or snapshot.total_bytes.get(device)
    if settings.per_process_memory_fraction < 1 and total is None:
        raise InputError("per_process_memory_fraction is a part of the device's memory, which it does not tell: "
                         "give it with --capacity-bytes")
    try:
        start = start_of(trace, snapshot.segments_of(device),
                         lambda size: round_to_division(size, recorded.roundup_power2_divisions),
                         recorded.max_split_size_bytes)
    except Inconsistent as error:
        raise InputError(f"its history does not lead to the segments it lists: {error}; take the snapshot before "
                         "recording stops, and while no other thread allocates") from None
    if start.handles:
        raise InputError("it has private pools (CUDA graphs, MemPool), whose memory other settings are not simulated "
                         "for: leave --allocator-conf and --capacity-bytes out")
    own = snapshot.total_bytes.get(device, UNLIMITED_TOTAL)
    assumed = None if outside_bytes is None or own >= UNLIMITED_TOTAL else max(0, own - outside_bytes)
    releases = _Releases(trace, sum(segment.total_size for segment in start.segments), (assumed, capacity_bytes))
    known = releases.limit_bytes if capacity_bytes is None else capacity_bytes
    if known is None and assumed is not None and assumed < releases.peak_bytes:
        known = releases.peak_bytes  # which PyTorch evidently got
    try:
        result = _Play(trace, start, (recorded, settings), assumed if known is None else known, total).result(
            device, releases)
        return replace(result, outside_bytes=outside_bytes if known is None and assumed is not None else None)
    except TRIPPED as error:
        raise InputError("its history contradicts itself: record it again") from error


class _Releases:
    """Tells the calls of ``empty_cache()`` from the refusals of the recorded device.

    Args:
        capacities: what PyTorch could have at most, in bytes, where the history does not tell it: the first that the
            recorded peak does not exceed counts. None if unknown.

    Attributes:
        perhaps_refused: as in :class:`WhatIf`.
        limit_bytes: the memory that PyTorch could have in the recording; None if it never ran out.
        peak_bytes: the most that was reserved in the recording.
    """

    def __init__(self, trace: Trace, start_bytes: int, capacities: Iterable[int | None]) -> None:
        self._actions, self._sizes = trace.action.tolist(), trace.size.tolist()
        reserved, peak = start_bytes, start_bytes
        groups: list[tuple[int, int, int]] = []  # first entry, reserved bytes before, and those needed after it
        limits: list[int] = []
        for index, (action, size) in enumerate(zip(self._actions, self._sizes)):
            if action in GIVEN_BACK:
                if index == 0 or not self._in_group(index - 1):
                    groups.append((index, reserved, self._needed_after(index)))
                reserved -= size
            elif action in NEW:
                reserved += size
                peak = max(peak, reserved)
            elif action == Action.OOM:  # its address is the memory that the driver had left
                limits.append(reserved + min(int(trace.address[index]), max(size - 1, 0)))
        self.peak_bytes = peak
        self.limit_bytes = max(peak, *limits) if limits else None
        known = next((size for size in (self.limit_bytes, *capacities) if size is not None and size >= peak), None)
        beyond = {first for first, before, needed in groups if needed and before + needed > (known or peak)}
        self._refused = set() if known is None else beyond
        self.perhaps_refused = len(beyond - self._refused)

    def is_emptied(self, index: int) -> bool:
        """Whether ``empty_cache()`` was called at this entry: the first that gives memory back, without a refusal."""
        return (self._actions[index] in GIVEN_BACK and (index == 0 or not self._in_group(index - 1))
                and index not in self._refused)

    def _in_group(self, index: int) -> bool:
        """Whether an entry can stand among those of one release."""
        while index >= 0 and self._actions[index] == Action.FREE_COMPLETED:
            index -= 1
        return index >= 0 and self._actions[index] in GIVEN_BACK

    def _after(self, index: int) -> int:
        while index < len(self._actions) and (self._actions[index] in GIVEN_BACK
                                              or self._actions[index] == Action.FREE_COMPLETED):
            index += 1
        return index

    def _fails_after(self, index: int) -> bool:
        after = self._after(index)
        return after < len(self._actions) and self._actions[after] == Action.OOM

    def _needed_after(self, index: int) -> int:
        """Bytes of the segments that were allocated right after a release, or of the request that failed; else 0."""
        after = self._after(index)
        if self._fails_after(index):
            return self._sizes[after]
        needed = 0
        while after < len(self._actions) and self._actions[after] in NEW:
            needed += self._sizes[after]
            after += 1
        return needed


class _Play:
    """One history, played once."""

    def __init__(self, trace: Trace, start: Start, settings: tuple[AllocatorSettings, AllocatorSettings],
                 limit_bytes: int | None, total_bytes: int | None) -> None:
        self._recorded, self._settings = settings
        self._trace, self._start, self._limit, self._total = trace, start, limit_bytes, total_bytes
        self.driver = SimulatedDriver(None, total_bytes or limit_bytes)
        rules = replace(self._recorded, garbage_collection_threshold=0.0, per_process_memory_fraction=1.0)
        self.allocator = CachingAllocator(rules, self.driver, completion="synchronization")
        self._blocks = seed(self.allocator, start)
        for block in self._blocks.values():
            if block.state == PENDING:
                self._wait(block)
        self.driver.capacity_bytes = limit_bytes
        self.allocator.change_settings(self._settings)
        self.allocator.set_per_process_memory_fraction(self._settings.per_process_memory_fraction)
        self.segments = [segment.total_size for segment in start.segments]
        self.allocator.observer = self._note
        self.failure: Failure | None = None
        self.failures_avoided = 0

    def result(self, device: int, releases: _Releases) -> WhatIf:
        """Plays the history, up to the first allocation that fails only here, and returns the result."""
        begun = Totals(*self._totals())
        entries = zip(self._trace.action.tolist(), self._trace.address.tolist(), self._trace.size.tolist(),
                      self._start.streams)
        for index, (action, address, size, stream) in enumerate(entries):
            if action in (Action.ALLOC, Action.OOM):
                if not self._allocate(index, size, stream, address if action == Action.ALLOC else None):
                    break
            elif action == Action.FREE_REQUESTED:
                self._free(index, address)
            elif action == Action.FREE_COMPLETED:
                if (block := self._blocks.pop(address, None)) is not None:
                    self.allocator.complete_events(block)
            elif releases.is_emptied(index):
                self.allocator.empty_cache()
        end = self.allocator
        return WhatIf(
            device=device, events=len(self._trace), settings=str(self._settings),
            recorded_settings=str(self._recorded), total_bytes=self._total,
            limit_bytes=self._limit, outside_bytes=None, start=begun,
            peak_requested_bytes=end.peak_requested_bytes, peak_allocated_bytes=end.peak_allocated_bytes,
            peak_active_bytes=end.peak_active_bytes, peak_reserved_bytes=end.peak_reserved_bytes,
            segments=tuple(self.segments), end=Totals(*self._totals()),
            perhaps_refused=releases.perhaps_refused, failures_avoided=self.failures_avoided, failure=self.failure)

    def _allocate(self, index: int, size: int, stream: int, address: int | None) -> bool:
        """Allocates a block, which failed in the recording if it has no address. Returns whether the play goes on."""
        try:
            block = self.allocator.malloc(size, stream) if size else None
        except OutOfMemory as error:
            failure = Failure(index, address is None, size, error.tried_to_allocate_bytes, error.allocated_bytes,
                              error.reserved_bytes)
            self.failure = self.failure or failure if failure.is_recorded else failure
            return failure.is_recorded
        if address is None:
            self.failures_avoided += 1
            if block is not None:
                self.allocator.free(block)
        elif block is not None:
            self._blocks[address] = block
        return True

    def _free(self, index: int, address: int) -> None:
        """Frees a block at once, or lets it wait as long as it did in the recording."""
        actions, addresses = self._trace.action, self._trace.address
        at_once = actions[index:index + 2].tolist() == PLAIN and addresses[index + 1] == address
        if at_once:
            self.allocator.free(self._blocks.pop(address))
        else:
            self.allocator.free_requested(self._blocks[address])
            self._wait(self._blocks[address])

    def _wait(self, block: Block) -> None:
        """The block is free as soon as the allocator waits for the device, or the history completes its free."""
        self.allocator.outstanding.insert(block, {block.arena.stream})

    def _note(self, action: str, _address: int, size: int, _stream: int) -> None:
        if action in NEW.values():
            self.segments.append(size)

    def _totals(self) -> Iterator[int]:
        end = self.allocator
        yield from (end.requested_bytes, end.allocated_bytes, end.active_bytes, end.reserved_bytes)


def is_other(snapshot: Snapshot, settings: AllocatorSettings) -> bool:
    """Whether settings differ from those of the recording in a way that matters for device memory."""
    first, second = (replace(item, without_effect=()) for item in (settings_of(snapshot.settings), settings))
    return first != second
