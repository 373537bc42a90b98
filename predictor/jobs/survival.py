"""Decides whether a job fits a GPU, by playing its events through the simulated caching allocator at a capacity.

The capacity also changes the events: DeepSpeed flattens on the GPU only where memory suffices. So the run is composed
again for each capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from predictor.allocator import AllocatorSettings, CachingAllocator, SimulatedDriver
from predictor.allocator.driver import ADDRESSES_BYTES, NoRange, reported_bytes
from predictor.allocator.simulate import Columns, Device, Simulation, highest_held, play, simulate
from predictor.events.composed_run import Run
from predictor.events.events import EventType, rows_at
from predictor.profile.corrections import Margin

if TYPE_CHECKING:
    from predictor.snapshot.recording import RecordingAllocator

PAGE_BYTES = 2 << 20
"""Segments are multiples of 2 MiB, so capacities between two multiples make no difference."""

NO_PROFILE = Margin()
FITS, UNCERTAIN = "fits", "uncertain"
"""The verdicts of a job that surely fits, and of one that fits with the most memory that PyTorch may get."""

RunsAt = Callable[[int | None], Sequence[Run]]
"""Gives the composed runs of the ranks to simulate, the one to report first, for the bytes that PyTorch can reserve
(None: no limit)."""


@dataclass(frozen=True)
class Failure:
    """A run that ran out of memory."""

    run: Run
    simulation: Simulation


@dataclass(frozen=True)
class Reserved:
    """Peak reserved bytes of PyTorch on a rank.

    Attributes:
        low, high: the smaller and the larger peak over :func:`completions`; None where they cannot differ.
    """

    rank: int
    bytes: int
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Outcome:
    """The simulated run that is reported, and its result.

    Attributes:
        run: the run of the rank with the highest requested peak.
        limit_bytes: bytes that PyTorch could reserve in ``simulation``; None for no limit.
        reserved: peak of the rank that reserves the most, which may be another rank than that of ``run``.
        failure: the run that ran out of memory; None if the job fits.
        verdict: ``fits``, ``uncertain``, ``does_not_fit``; None without a capacity.
        allocated: the run that allocates the most, with its simulation; None if that is ``run``.
    """

    run: Run
    simulation: Simulation
    limit_bytes: int | None
    reserved: Reserved
    failure: Failure | None
    verdict: str | None = None
    allocated: tuple[Run, Simulation] | None = None

    @property
    def peak_allocated_bytes(self) -> int:
        """That of the run that allocates the most."""
        return (self.allocated[1] if self.allocated else self.simulation).peak_allocated_bytes


NO_LIMIT_BYTES = 16 << 40
"""What PyTorch can reserve on a GPU without a limit, for jobs that request less than half of it. Blocks that grow from
call to call, as those of a cache of keys and values, would fill all addresses, because nothing is given back before a
request is refused."""


def completions(run: Run) -> tuple[str, ...]:
    """The completion modes to simulate: GPU events complete at once, or only when the host synchronizes.

    They differ only where a block is used on two streams; otherwise one mode is enough.
    """
    shared = bool((run.events.kind >= EventType.RECORD_STREAM).any())
    return ("immediate", "synchronization") if shared else ("immediate",)


def simulate_run(run: Run, settings: AllocatorSettings, *, completion: str = "immediate",
                 limit_bytes: int | None = None, total_bytes: int | None = None) -> Simulation:
    """Plays a run through a new allocator.

    Args:
        completion: one of :func:`completions`.
        limit_bytes: bytes that PyTorch can reserve; None for no limit.
        total_bytes: total memory that the GPU reports.

    Raises:
        InputError: the job needs more addresses than a GPU has.
    """
    if run.peak > ADDRESSES_BYTES:
        raise NoRange(run.peak)
    if limit_bytes is not None:
        return simulate(_columns(run), Device(settings, limit_bytes, total_bytes, completion))
    total_bytes = reported_bytes(None, total_bytes)
    limit_bytes = min(max(NO_LIMIT_BYTES, 2 * run.peak), ADDRESSES_BYTES // 4 * 3)
    simulation = simulate(_columns(run), Device(settings, limit_bytes, total_bytes, completion))
    if simulation.out_of_memory is not None:
        raise NoRange(simulation.out_of_memory.requested_bytes)
    return simulation


def play_on(allocator: CachingAllocator, run: Run, event_types: Iterable[int]) -> Simulation:
    """Plays a run through an allocator. ``event_types`` yields the :class:`EventType` of each event in order."""
    return play(event_types, _columns(run), allocator)


def _columns(run: Run) -> Columns:
    events, buffers = run.events, run.events.buffers
    return Columns(events.kind, events.buffer, rows_at(run.row_bytes, buffers.size), buffers.stream)


class Plays:
    """Plays runs through new allocators, and reuses results where a simulation would be the same.

    A run that survives with the limit L and reserves at most R bytes behaves the same with every limit from R to L:
    what was granted is granted again, what was refused is refused again. If nothing was refused, it behaves the same
    with every limit from R on. Neither holds where the settings limit PyTorch to a fraction of memory.
    """

    def __init__(self, settings: AllocatorSettings, total_bytes: int | None = None) -> None:
        self._settings, self._total_bytes = settings, total_bytes
        self._fraction_of_limit = total_bytes is None and settings.per_process_memory_fraction < 1
        self._played: dict[tuple, list[tuple[float, float, Simulation]]] = {}
        """Run and completion -> results, each with the lowest and the highest limit for which it holds."""

    def ends(self, run: Run, limit_bytes: int | None) -> list[Simulation]:
        """The simulation of each completion mode of :func:`completions`."""
        key = run.events.digest, run.row_bytes.tobytes(), limit_bytes if self._fraction_of_limit else None
        return [self._play(run, key, completion, limit_bytes) for completion in completions(run)]

    def _play(self, run: Run, key: tuple, completion: str, limit_bytes: int | None) -> Simulation:
        limit, known = math.inf if limit_bytes is None else limit_bytes, self._played.setdefault((key, completion), [])
        simulation = next((result for least, most, result in known if least <= limit <= most), None)
        if simulation is None:
            simulation = simulate_run(run, self._settings, completion=completion, limit_bytes=limit_bytes,
                                      total_bytes=self._total_bytes)
            least = limit if simulation.failed_at is not None else simulation.peak_reserved_bytes
            known.append((least, limit if simulation.refused else math.inf, simulation))
        return simulation


def judge(runs_at: RunsAt, settings: AllocatorSettings, capacity_bytes: int | None,
          margin: Margin = NO_PROFILE) -> Outcome:
    """Judges whether a job fits a GPU: surely, perhaps, or not. It fits if every simulated rank does.

    It surely fits if it survives with the least and with the most that PyTorch may get, by :meth:`Margin.limits`: with
    more memory a cache that was never emptied may leave no room at a worse moment, so both are needed.

    Args:
        capacity_bytes: the GPU's memory; None to simulate without a limit and without a verdict.
    """
    plays = Plays(settings, capacity_bytes)
    if capacity_bytes is None:
        return _worst(plays, None, runs_at(None))
    surely, at_best = margin.limits(capacity_bytes)
    certain = _worst(plays, surely, runs_at(surely), until_failure=True)
    runs = runs_at(at_best)
    possible = _worst(plays, at_best, runs, until_failure=True)
    if certain.failure is None and possible.failure is None:
        return replace(certain, verdict=FITS)
    survivor = next((one for one in (possible, certain) if one.simulation.failed_at is None), None)
    if survivor is not None:
        return replace(survivor, verdict=UNCERTAIN, failure=possible.failure or certain.failure)
    failing_first = sorted(runs, key=lambda run: run is not possible.run)
    return replace(_worst(plays, None, failing_first), verdict="does_not_fit", failure=possible.failure)


@dataclass(frozen=True)
class Peaks:
    """Peak bytes of a job that surely fits, each of the rank that has the most.

    Attributes:
        reserved_high_bytes: the highest over :func:`completions`.
    """

    allocated_bytes: int
    reserved_bytes: int
    reserved_high_bytes: int

    def or_higher(self, other: Peaks) -> Peaks:
        """The peaks of two sets of ranks together."""
        return Peaks(max(self.allocated_bytes, other.allocated_bytes), max(self.reserved_bytes, other.reserved_bytes),
                     max(self.reserved_high_bytes, other.reserved_high_bytes))


@dataclass(frozen=True)
class Shortage:
    """A rank that ran out of memory.

    Attributes:
        idle_bytes: what PyTorch could have reserved and neither tensors held nor the failed request wanted.
    """

    rank: int
    idle_bytes: int


def surviving(run_at: Callable[[int | None], Run], settings: AllocatorSettings, capacity_bytes: int,
              margin: Margin) -> Peaks | Shortage:
    """The peaks of one rank's run if it surely fits, as :func:`judge` decides it, or how it failed.

    Args:
        run_at: as :data:`RunsAt`, of the one rank.
    """
    plays, outcomes = Plays(settings, capacity_bytes), []
    for limit in margin.limits(capacity_bytes):
        outcome = _outcome(plays, limit, run_at(limit))
        if outcome.failure is not None:
            error = outcome.failure.simulation.out_of_memory
            assert error is not None and limit is not None  # a failed simulation has an error, and had a limit
            return Shortage(outcome.run.rank, max(0, limit - error.allocated_bytes - error.requested_bytes))
        outcomes.append(outcome)
    reserved = outcomes[0].reserved
    return Peaks(outcomes[0].simulation.peak_allocated_bytes, reserved.bytes,
                 reserved.bytes if reserved.high is None else reserved.high)


def _worst(plays: Plays, limit: int | None, runs: Sequence[Run], *, until_failure: bool = False) -> Outcome:
    """The outcome over all ranks, with the highest requested, allocated and reserved peaks.

    With ``until_failure`` it ends at the first rank that fails, and gives that rank's outcome.
    """
    outcomes = []
    for run in runs:
        outcomes.append(_outcome(plays, limit, run))
        if until_failure and outcomes[-1].simulation.failed_at is not None:
            return outcomes[-1]
    failure = next((outcome.failure for outcome in outcomes if outcome.failure), None)
    first = max(outcomes, key=lambda outcome: outcome.run.peak)  # of equals max keeps the first
    allocated = max(outcomes, key=lambda outcome: (outcome.simulation.peak_allocated_bytes, outcome is first))
    return replace(first, failure=failure, allocated=(allocated.run, allocated.simulation),
                   reserved=_highest([first.reserved, *(outcome.reserved for outcome in outcomes)]))


def _outcome(plays: Plays, limit: int | None, run: Run) -> Outcome:
    """The outcome of one rank, over its completion modes."""
    ends = plays.ends(run, limit)
    reserved = [end.peak_reserved_bytes for end in ends]
    low, high = (min(reserved), max(reserved)) if len(ends) > 1 else (None, None)
    failed = next((end for end in ends if end.failed_at is not None), None)
    return Outcome(run, ends[0], limit, Reserved(run.rank, reserved[0], low, high),
                   None if failed is None else Failure(run, failed))


def _highest(ranks: Sequence[Reserved]) -> Reserved:
    """The highest reserved peak of the ranks, for each completion mode too."""
    highest = max(ranks, key=lambda rank: rank.bytes)
    if all(rank.low is None for rank in ranks):
        return highest
    return replace(highest, low=max(rank.bytes if rank.low is None else rank.low for rank in ranks),
                   high=max(rank.bytes if rank.high is None else rank.high for rank in ranks))


def record(outcome: Outcome, settings: AllocatorSettings, capacity_bytes: int | None) -> RecordingAllocator:
    """Plays the outcome's run again, and records the allocator's history."""
    from predictor.snapshot.recording import RecordingAllocator

    driver = SimulatedDriver(outcome.limit_bytes, capacity_bytes, settings.address_step_bytes)
    allocator = RecordingAllocator(settings, driver)
    events = outcome.run.events

    def event_types() -> Iterator[int]:
        for index, event_type in enumerate(events.kind.tolist()):
            allocator.tag = events[index].tag
            yield event_type

    play_on(allocator, outcome.run, event_types())
    return allocator


def highest(outcome: Outcome, settings: AllocatorSettings, capacity_bytes: int | None, ends: np.ndarray) -> np.ndarray:
    """Plays the outcome's run again. Arguments and result are those of :func:`highest_held`."""
    return highest_held(_columns(outcome.run), Device(settings, outcome.limit_bytes, capacity_bytes), ends)


def minimum_capacity(runs_at: RunsAt, settings: AllocatorSettings, margin: Margin = NO_PROFILE,
                     tell: Callable[[int], None] = lambda _: None) -> int:
    """The smallest capacity from which on the job surely fits, in bytes, memory outside PyTorch included.

    A job that fits one capacity may fail at a larger one, so a binary search could miss failures. But a run that
    survives at a limit L and reserves at most R bytes behaves the same at every limit from R to L (see
    :class:`Plays`). So the search tries one page below R next, and so on until a run fails. No limit is left out.

    Args:
        tell: called with each limit before it is tried, in bytes.
    """
    plays, limit = Plays(settings), None
    while True:
        highest = 0
        for run in runs_at(limit):
            ends = plays.ends(run, limit)
            if any(end.failed_at is not None for end in ends):
                assert limit is not None  # without a limit no run fails
                return margin.capacity(limit + PAGE_BYTES)
            highest = max(highest, *(end.peak_reserved_bytes for end in ends))
        limit = highest - PAGE_BYTES
        tell(limit)
