"""Whether a job survives on a GPU: its events through the caching allocator, at a capacity.

Capacity changes the events too (DeepSpeed flattens on the GPU only where memory suffices), so the run is composed
anew for each capacity that is asked about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from predictor.allocator import AllocatorSettings, CachingAllocator, SimulatedDriver
from predictor.allocator.simulate import Simulation, simulate
from predictor.events.composed_run import Run
from predictor.events.events import Kind
from predictor.profile.corrections import Margin
from predictor.snapshot.recording import RecordingAllocator

PAGE_BYTES = 2 << 20
"""Segments are multiples of it, so finer capacities make no difference."""

NO_PROFILE = Margin()

RunsAt = Callable[[int | None], Sequence[Run]]
"""The composed runs of the ranks to look at, the one to report first, where PyTorch can have so many bytes (None:
without limit)."""


@dataclass(frozen=True)
class Failure:
    """A run that ran out of memory."""

    run: Run
    simulation: Simulation


@dataclass(frozen=True)
class Reserved:
    """What PyTorch reserves at its highest on a rank; bytes.

    Attributes:
        low, high: at both ends of when events complete, where that matters.
    """

    rank: int
    bytes: int
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Outcome:
    """The run that was looked at and what became of it.

    Attributes:
        run: of the rank that requests the most.
        limit_bytes: what PyTorch could have in ``simulation``; None for no limit.
        reserved: of the rank that reserves the most, which need not be that of ``run``.
        failure: where a rank ran out of memory, unless it fits.
        verdict: ``fits``, ``uncertain``, ``does_not_fit``; None without a capacity.
        allocated: the run that allocates the most, with its simulation; None: that of ``run``.
    """

    run: Run
    simulation: Simulation
    limit_bytes: int | None
    reserved: Reserved
    failure: Failure | None
    verdict: str | None = None
    allocated: tuple[Run, Simulation] | None = None


def completions(run: Run) -> tuple[str, ...]:
    """Both ends of when a GPU's events complete; they differ only where a block is used on two streams."""
    shared = bool((run.events.kind >= Kind.RECORD_STREAM).any())
    return ("immediate", "synchronization") if shared else ("immediate",)


def play(run: Run, settings: AllocatorSettings, *, completion: str = "immediate", limit_bytes: int | None = None,
         total_bytes: int | None = None) -> Simulation:
    """One run through an allocator of its own.

    Args:
        limit_bytes: what PyTorch can have; None for no limit.
        total_bytes: what the GPU says it has.
    """
    return play_on(CachingAllocator(settings, SimulatedDriver(limit_bytes, total_bytes), completion), run,
                   run.events.kind.tolist())


def play_on(allocator: CachingAllocator, run: Run, kinds: Iterable[int]) -> Simulation:
    """One run through an allocator; ``kinds`` are those of its events, told one by one."""
    buffers = run.events.buffers
    return simulate(kinds, run.events.buffer.tolist(), run.row_bytes[buffers.size].tolist(), buffers.stream.tolist(),
                    allocator)


class Plays:
    """Runs through allocators of their own; what was played once is not played again.

    A run that survives where PyTorch can have so many bytes, and holds at most R of them, is the same run wherever it
    can have R or more, up to that: what was granted still is, what was refused still is. If nothing was refused, it is
    the same with any more. Not so where the settings give PyTorch a fraction of that.
    """

    def __init__(self, settings: AllocatorSettings, total_bytes: int | None = None) -> None:
        self._settings, self._total_bytes = settings, total_bytes
        self._of_limit = total_bytes is None and settings.per_process_memory_fraction < 1
        self._played: dict[tuple, list[tuple[float, float, Simulation]]] = {}

    def ends(self, run: Run, limit_bytes: int | None) -> list[Simulation]:
        """At each end of :func:`completions`."""
        key = _seen_by_allocator(run), limit_bytes if self._of_limit else None
        return [self._play(run, key, completion, limit_bytes) for completion in completions(run)]

    def _play(self, run: Run, key: tuple, completion: str, limit_bytes: int | None) -> Simulation:
        limit, known = math.inf if limit_bytes is None else limit_bytes, self._played.setdefault((key, completion), [])
        found = next((end for least, most, end in known if least <= limit <= most), None)
        if found is None:
            found = play(run, self._settings, completion=completion, limit_bytes=limit_bytes,
                         total_bytes=self._total_bytes)
            least = limit if found.failed_at is not None else found.peak_reserved_bytes
            known.append((least, limit if found.allocator.driver.refusals else math.inf, found))
        return found


def _seen_by_allocator(run: Run) -> bytes:
    """Of runs with equal events, sizes and streams: the same."""
    events, buffers = run.events, run.events.buffers
    said = blake2b(digest_size=16)
    for column in (events.kind, events.buffer, run.row_bytes[buffers.size[events.buffer]],
                   buffers.stream[events.buffer]):
        said.update(np.ascontiguousarray(column).data)
    return said.digest()


def judge(runs_at: RunsAt, settings: AllocatorSettings, capacity_bytes: int | None,
          margin: Margin = NO_PROFILE) -> Outcome:
    """Whether a job fits a GPU of a capacity: surely, at best, or not. It fits if every rank that is looked at does."""
    plays = Plays(settings, capacity_bytes)
    if capacity_bytes is None:
        return _worst(plays, None, runs_at(None))
    surely, at_best = margin.limits(capacity_bytes)
    certain = _worst(plays, surely, runs_at(surely), until_failure=True)
    if certain.failure is None:
        return replace(certain, verdict="fits")
    runs = runs_at(at_best)
    possible = _worst(plays, at_best, runs, until_failure=True)
    if possible.simulation.failed_at is None:
        return replace(possible, verdict="uncertain", failure=possible.failure or certain.failure)
    failing_first = sorted(runs, key=lambda run: run is not possible.run)
    return replace(_worst(plays, None, failing_first), verdict="does_not_fit", failure=possible.failure)


def _worst(plays: Plays, limit: int | None, runs: Sequence[Run], *, until_failure: bool = False) -> Outcome:
    """Of all ranks: the most that any requests, allocates and reserves; or the first that surely fails, alone."""
    outcomes = []
    for run in runs:
        outcomes.append(_outcome(plays, limit, run))
        if until_failure and outcomes[-1].simulation.failed_at is not None:
            return outcomes[-1]
    failure = next((one.failure for one in outcomes if one.failure), None)
    first = max(outcomes, key=lambda one: one.run.peak)  # of equals max keeps the first
    allocated = max(outcomes, key=lambda one: (one.simulation.peak_allocated_bytes, one is first))
    return replace(first, failure=failure, reserved=_most([first.reserved, *(one.reserved for one in outcomes)]),
                   allocated=(allocated.run, allocated.simulation))


def _outcome(plays: Plays, limit: int | None, run: Run) -> Outcome:
    """Of one rank."""
    ends = plays.ends(run, limit)
    reserved = [end.peak_reserved_bytes for end in ends]
    low, high = (min(reserved), max(reserved)) if len(ends) > 1 else (None, None)
    failed = next((end for end in ends if end.failed_at is not None), None)
    return Outcome(run, ends[0], limit, Reserved(run.rank, reserved[0], low, high), failed and Failure(run, failed))


def _most(each: Sequence[Reserved]) -> Reserved:
    """The most that any of the ranks reserves, at either end of when events complete too."""
    most = max(each, key=lambda one: one.bytes)
    if all(one.low is None for one in each):
        return most
    return replace(most, low=max(one.bytes if one.low is None else one.low for one in each),
                   high=max(one.bytes if one.high is None else one.high for one in each))


def record(outcome: Outcome, settings: AllocatorSettings, capacity_bytes: int | None) -> RecordingAllocator:
    """The outcome's simulation once more, with its history."""
    allocator = RecordingAllocator(settings, SimulatedDriver(outcome.limit_bytes, capacity_bytes))
    events = outcome.run.events

    def told() -> Iterator[int]:
        for index, kind in enumerate(events.kind.tolist()):
            allocator.tag = events[index].tag
            yield kind

    play_on(allocator, outcome.run, told())
    return allocator


def minimum_capacity(runs_at: RunsAt, settings: AllocatorSettings, margin: Margin = NO_PROFILE,
                     tell: Callable[[int], None] = lambda _: None) -> int:
    """Smallest capacity at and above which the job surely survives, the runtime included; bytes.

    Survival need not grow with capacity, so halving would not do. But a run that survives at a capacity and holds at
    most R bytes there is the same run at every capacity from R up to that one: what was granted still is, what was
    refused still is. So the search goes down from R to R, each time looking a page below, until a run fails: no
    capacity is left out. ``tell`` hears of each limit that is tried.
    """
    plays, limit = Plays(settings), None
    while True:
        highest = 0
        for run in runs_at(limit):
            ends = plays.ends(run, limit)
            if any(end.failed_at is not None for end in ends):
                return margin.capacity(limit + PAGE_BYTES)
            highest = max(highest, *(end.peak_reserved_bytes for end in ends))
        limit = highest - PAGE_BYTES
        tell(limit)
