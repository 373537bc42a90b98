"""Whether a job survives on a GPU: its events through the caching allocator, at a capacity.

Capacity changes the events too (DeepSpeed flattens on the GPU only where memory suffices), so the run is composed
anew for each capacity that is asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from predictor.allocator import AllocatorSettings, CachingAllocator, SimulatedDriver
from predictor.allocator.simulate import Simulation, simulate
from predictor.calibrated import Margin
from predictor.events import Kind
from predictor.run import Run
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
        limit_bytes: what PyTorch could have in ``simulation``; None for no limit.
        reserved: of the rank that reserves the most, which need not be that of ``run``.
        failure: where a rank ran out of memory, unless it fits.
        verdict: ``fits``, ``uncertain``, ``does_not_fit``; None without a capacity.
    """

    run: Run
    simulation: Simulation
    limit_bytes: int | None
    reserved: Reserved
    failure: Failure | None
    verdict: str | None = None


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


def judge(runs_at: RunsAt, settings: AllocatorSettings, capacity_bytes: int | None,
          margin: Margin = NO_PROFILE) -> Outcome:
    """Whether a job fits a GPU of a capacity: surely, at best, or not. It fits if every rank that is looked at does."""

    def outcome(limit: int | None, run: Run) -> Outcome:
        """Of one rank."""
        ends = [play(run, settings, completion=completion, limit_bytes=limit, total_bytes=capacity_bytes)
                for completion in completions(run)]
        reserved = [end.peak_reserved_bytes for end in ends]
        low, high = (min(reserved), max(reserved)) if len(ends) > 1 else (None, None)
        failed = next((end for end in ends if end.failed_at is not None), None)
        return Outcome(run, ends[0], limit, Reserved(run.rank, reserved[0], low, high),
                       failed and Failure(run, failed))

    def worst(limit: int | None, runs: Sequence[Run]) -> Outcome:
        outcomes = [outcome(limit, run) for run in runs]  # of equals max keeps the first
        found = max(outcomes, key=lambda one: (one.simulation.failed_at is not None, one.failure is not None))
        return replace(found, reserved=max((one.reserved for one in outcomes), key=lambda reserved: reserved.bytes))

    if capacity_bytes is None:
        return worst(None, runs_at(None))
    surely, at_best = margin.limits(capacity_bytes)
    certain = worst(surely, runs_at(surely))
    if certain.failure is None:
        return replace(certain, verdict="fits")
    runs = runs_at(at_best)
    possible = worst(at_best, runs)
    if possible.simulation.failed_at is None:
        return replace(possible, verdict="uncertain", failure=possible.failure or certain.failure)
    failing_first = sorted(runs, key=lambda run: run is not possible.run)
    return replace(worst(None, failing_first), verdict="does_not_fit", failure=possible.failure)


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
    limit = None
    while True:
        ends = [play(run, settings, completion=completion, limit_bytes=limit)
                for run in runs_at(limit) for completion in completions(run)]
        if any(end.failed_at is not None for end in ends):
            return margin.capacity(limit + PAGE_BYTES)
        limit = max(end.peak_reserved_bytes for end in ends) - PAGE_BYTES
        tell(limit)
