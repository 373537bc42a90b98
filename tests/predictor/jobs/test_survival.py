"""Verdict and smallest sufficient capacity, on hand-made and random events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.allocator import AllocatorSettings
from predictor.events.composed_run import Run
from predictor.events.events import FACTORS, MOMENTS, Buffers, EventList, EventType, Factor, Moment
from predictor.events.sizes import SizeTable
from predictor.jobs import survival
from predictor.jobs.survival import PAGE_BYTES
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES

MIB = 1 << 20
GIB = 1 << 30
DEFAULT = AllocatorSettings()


def run(rows: list[tuple[int, int]], sizes: list[int], streams: list[int] | None = None) -> Run:
    """Events (kind, buffer) over buffers of so many bytes."""
    count = len(sizes)
    kinds, buffers = (np.array(column, dtype=np.int32) for column in zip(*rows))
    zeros = np.zeros(count, np.int32)
    events = EventList(
        kind=kinds.astype(np.int8), buffer=buffers, moment=np.full(len(rows), MOMENTS.index(Moment.FORWARD), np.int8),
        step=np.ones(len(rows), np.int8),
        buffers=Buffers(np.arange(count, dtype=np.int32), np.array(streams or [0] * count, np.int8),
                        np.full(count, FACTORS.index(Factor.ACTIVATIONS), np.int8), zeros, zeros),
        sizes=SizeTable.constants(sizes), names=("x",))
    row_bytes = np.array(sizes, dtype=np.int64)
    return Run(events, 0, row_bytes, np.cumsum(row_bytes[buffers] * events.sign))


def one(*arguments) -> list[Run]:
    """The only rank."""
    return [run(*arguments)]


def test_it_fits_only_if_every_rank_does():
    small, large = run([(1, 0)], [GIB]), run([(1, 0)], [3 * GIB])
    outcome = survival.judge(lambda _: [small, large], DEFAULT, 2 * GIB)
    assert outcome.verdict == "does_not_fit" and outcome.failure.run is large and outcome.run is large
    assert survival.minimum_capacity(lambda _: [small, large], DEFAULT) == 3 * GIB + ASSUMED_RUNTIME_BYTES


def test_a_rank_that_surely_dies_decides_before_one_that_may():
    """The first dies only if events complete late, the second always."""
    rows = [(1, 0), (EventType.RECORD_STREAM + 1, 0), (-1, 0), (1, 1)]
    may, must = run(rows, [GIB, GIB]), run([(1, 0), (1, 1)], [GIB, GIB])
    assert survival.judge(lambda _: [may], DEFAULT, GIB).verdict == "uncertain"
    outcome = survival.judge(lambda _: [may, must], DEFAULT, GIB)
    assert outcome.verdict == "does_not_fit" and outcome.failure.run is must


def test_an_uncertain_verdict_tells_where_the_run_with_less_room_fails():
    """With less room another run is composed; the failure is that run's, not the reported one's."""
    def runs_at(limit):
        return one([(1, 0)], [GIB]) if limit >= 2 * GIB else one([(1, 0), (1, 1)], [GIB, GIB])

    outcome = survival.judge(runs_at, DEFAULT, 2 * GIB)
    assert outcome.verdict == "uncertain" and len(outcome.run.events) == 1
    assert len(outcome.failure.run.events) == 2 and outcome.failure.simulation.failed_at == 1


def test_what_dies_with_the_most_room_does_not_surely_fit():
    def runs_at(limit):
        return one([(1, 0), (1, 1)], [2 * GIB, GIB]) if limit >= 2 * GIB else one([(1, 0)], [MIB])

    outcome = survival.judge(runs_at, DEFAULT, 2 * GIB)
    assert outcome.verdict == "uncertain" and outcome.simulation.failed_at is None and outcome.failure is not None
    assert isinstance(survival.surviving(lambda limit: runs_at(limit)[0], DEFAULT, 2 * GIB, survival.NO_PROFILE), survival.Shortage)


def test_without_a_capacity_there_is_no_verdict():
    outcome = survival.judge(lambda _: one([(1, 0)], [30 * MIB]), DEFAULT, None)
    assert outcome.verdict is None and outcome.simulation.peak_reserved_bytes == 30 * MIB


def test_the_verdict_is_sure_only_where_the_assumed_runtime_does_not_matter():
    def verdict(capacity: int) -> str | None:
        return survival.judge(lambda _: one([(1, 0)], [GIB]), DEFAULT, capacity).verdict

    assert verdict(GIB + ASSUMED_RUNTIME_BYTES) == "fits"
    assert verdict(GIB + ASSUMED_RUNTIME_BYTES - PAGE_BYTES) == verdict(GIB) == "uncertain"
    assert verdict(GIB - PAGE_BYTES) == "does_not_fit"


def test_a_job_that_does_not_fit_is_shown_as_it_would_be_and_where_it_fails():
    outcome = survival.judge(lambda _: one([(1, 0), (1, 1)], [GIB, GIB]), DEFAULT, GIB)
    assert outcome.simulation.peak_reserved_bytes == 2 * GIB
    assert outcome.failure.simulation.failed_at == 1
    assert outcome.failure.simulation.out_of_memory.requested_bytes == GIB


def test_growing_blocks_do_not_fill_all_addresses_without_a_limit():
    rows = [(kind, buffer) for buffer in range(500) for kind in (1, -1)]
    sizes = [(buffer + 1) * GIB for buffer in range(500)]  # 122 TiB together, and none reuses the blocks before
    outcome = survival.judge(lambda _: one(rows, sizes), DEFAULT, 80 * GIB)
    assert outcome.verdict == "does_not_fit"
    assert outcome.simulation.peak_allocated_bytes == 500 * GIB
    assert 15 * 1024 * GIB < outcome.simulation.peak_reserved_bytes <= survival.NO_LIMIT_BYTES == 16 * 1024 * GIB


def test_cached_segments_are_given_back_before_it_fails():
    freed_before = [(1, 0), (-1, 0), (1, 1)]  # 2 GiB cached, too small for 3 GiB
    assert survival.minimum_capacity(lambda _: one(freed_before, [2 * GIB, 3 * GIB]), DEFAULT) == \
        3 * GIB + ASSUMED_RUNTIME_BYTES


def test_when_events_complete_bounds_the_reserved_peak():
    rows = [(1, 0), (EventType.RECORD_STREAM + 1, 0), (-1, 0), (1, 1)]  # reused at once, or not before a synchronisation
    outcome = survival.judge(lambda _: one(rows, [GIB, GIB]), DEFAULT, None)
    assert (outcome.reserved.low, outcome.reserved.high) == (GIB, 2 * GIB)
    synchronised = survival.judge(lambda _: one([*rows[:3], (EventType.SYNCHRONIZE, 0), rows[3]], [GIB, GIB]), DEFAULT, None)
    assert (synchronised.reserved.low, synchronised.reserved.high) == (GIB, GIB)


def test_the_rank_that_reserves_the_most_need_not_request_the_most():
    requests = run([(1, 0)], [3 * GIB])
    keeps = replace(run([(1, 0), (-1, 0), (1, 1)], [2 * GIB, 2 * GIB + 1]), rank=7)
    outcome = survival.judge(lambda _: [requests, keeps], DEFAULT, None)
    assert (outcome.run.rank, outcome.reserved.rank, outcome.reserved.bytes) == (0, 7, 4 * GIB + (2 << 20))


def test_every_peak_is_that_of_the_rank_that_has_the_most_of_it():
    requests = run([(1, 0), (1, 1)], [40 * MIB, 37 * MIB // 2])
    rows = [(1, 0), (-1, 0), (1, 1), (1, 2), (-1, 2), (1, 3), (1, 4), (-1, 4), (1, 5)]
    tails = replace(run(rows, [20 * MIB, 19 * MIB + 1] * 3), rank=5)  # each of the smaller ones keeps its whole block
    outcome = survival.judge(lambda _: [requests, tails], DEFAULT, None)
    of_blocks, simulation = outcome.allocated
    assert (outcome.run.rank, of_blocks.rank) == (0, 5)
    assert outcome.run.peak > of_blocks.peak
    assert simulation.peak_allocated_bytes == 60 * MIB > outcome.simulation.peak_allocated_bytes


def test_a_rank_that_reserves_the_most_only_if_events_complete_late_sets_the_upper_end():
    surely = run([(1, 0)], [GIB + 4 * MIB])
    late = run([(1, 0), (EventType.RECORD_STREAM + 1, 0), (-1, 0), (1, 1)], [GIB, GIB])
    reserved = survival.judge(lambda _: [surely, late], DEFAULT, None).reserved
    assert (reserved.low, reserved.bytes, reserved.high) == (GIB + 4 * MIB, GIB + 4 * MIB, 2 * GIB)


def test_a_job_of_which_a_rank_fails_still_says_the_most_that_any_requests():
    most = run([(1, 0)], [3 * GIB])
    fails = replace(run([(1, 0), (-1, 0), (1, 1), (1, 2)], [2 * GIB, GIB, 3 * GIB // 2]), rank=1)
    outcome = survival.judge(lambda _: [fails, most], DEFAULT, 3 * GIB + 256 * MIB)
    assert (outcome.verdict, outcome.failure.run.rank, outcome.run.rank) == ("does_not_fit", 1, 0)


@settings(max_examples=100)
@given(st.data())
def test_what_is_not_played_again_would_have_been_the_same(data):
    sizes = data.draw(st.lists(st.integers(1, 40).map(lambda size: size * MIB // 2), min_size=1, max_size=12))
    rows, live = [], []
    for buffer in range(len(sizes)):
        rows.append((1, buffer))
        live.append(buffer)
        while live and data.draw(st.booleans()):
            rows.append((-1, live.pop(data.draw(st.integers(0, len(live) - 1)))))
    job, plays = run(rows, sizes), survival.Plays(DEFAULT)
    for limit in data.draw(st.lists(st.none() | st.integers(0, 150).map(lambda pages: pages * PAGE_BYTES), max_size=6)):
        again, (found,) = survival.simulate_run(job, DEFAULT, limit_bytes=limit), plays.ends(job, limit)
        assert (found.failed_at, found.peak_reserved_bytes, found.peak_allocated_bytes) == (
            again.failed_at, again.peak_reserved_bytes, again.peak_allocated_bytes)


def test_an_emptied_cache_is_not_reserved():
    rows = [(1, 0), (-1, 0), (EventType.EMPTY_CACHE, 0), (1, 1)]
    assert survival.simulate_run(run(rows, [2 * GIB, 3 * GIB]), DEFAULT).peak_reserved_bytes == 3 * GIB


def test_the_capacity_that_decides_the_events_is_the_one_that_limits_them():
    """Above 4 GiB this job takes 3 GiB more: it survives from 2 GiB to below 4, and from 5 on."""
    asked = []

    def run_at(limit):
        asked.append(limit)
        greedy = limit is None or limit >= 4 * GIB
        return one([(1, 0), (1, 1)] if greedy else [(1, 0)], [2 * GIB, 3 * GIB])

    assert survival.minimum_capacity(run_at, DEFAULT) == 5 * GIB + ASSUMED_RUNTIME_BYTES
    assert asked[0] is None and all(limit % PAGE_BYTES == 0 for limit in asked[1:])


@st.composite
def jobs(draw):
    """A few allocations of 1 to 60 MiB and frees, at random."""
    sizes = draw(st.lists(st.integers(MIB, 60 * MIB), min_size=1, max_size=12))
    rows, alive = [], []
    for buffer in range(len(sizes)):
        rows.append((1, buffer))
        alive.append(buffer)
        while alive and draw(st.booleans()):
            rows.append((-1, alive.pop(draw(st.integers(0, len(alive) - 1)))))
    return run(rows, sizes)


@settings(max_examples=60, deadline=None)
@given(job=jobs())
def test_the_least_capacity_is_what_trying_every_page_finds(job):
    found = survival.minimum_capacity(lambda _: [job], DEFAULT) - ASSUMED_RUNTIME_BYTES
    pages = range(survival.simulate_run(job, DEFAULT).peak_reserved_bytes // PAGE_BYTES, -1, -1)
    last_that_dies = next(page for page in pages
                          if survival.simulate_run(job, DEFAULT, limit_bytes=page * PAGE_BYTES).failed_at is not None)
    assert found == (last_that_dies + 1) * PAGE_BYTES
