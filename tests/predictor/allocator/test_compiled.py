"""The compiled allocator does what the Python one does, event by event."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.allocator import AllocatorSettings, compiled, simulate
from predictor.allocator.simulate import Columns, Device
from predictor.events.events import EventType
from predictor.jobs import dispatch, survival
from predictor.workload.workload import Workload

MIB = 2**20
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:20", "max_split_size_mb:40,max_non_split_rounding_mb:25",
            "roundup_power2_divisions:4", "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
            "garbage_collection_threshold:0.5,per_process_memory_fraction:0.7,max_split_size_mb:25",
            "large_segment_size_mb:32,max_split_size_mb:32,expandable_segments:True",
            "expandable_segments:True,garbage_collection_threshold:0.1,per_process_memory_fraction:0.9",
            "expandable_segments:True,per_process_memory_fraction:0.5,roundup_power2_divisions:2")
LIMITS = (None, 60 * MIB, 150 * MIB, 500 * MIB)
RESULTS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "reserved_bytes", "peak_at",
           "reserved_at_peak_bytes", "refused", "failed_at")
ERRORS = ("tried_to_allocate_bytes", "requested_bytes", "allocated_bytes", "reserved_bytes", "free_bytes",
          "allowed_bytes")


def sequence(seed: int, length: int, scale: int) -> Columns:
    """Random events on three streams: allocations, frees of them, uses by other streams, synchronisations."""
    rng = np.random.default_rng(seed)
    kinds, buffers, sizes, streams, alive = [], [], [], [], []

    def new(size: int) -> int:
        sizes.append(size)
        streams.append(int(rng.choice(3, p=(0.7, 0.2, 0.1))))
        return len(sizes) - 1

    for _ in range(length):
        what = rng.random()
        if what < 0.5 or not alive and what < 0.96:
            largest = int(rng.choice([2000, MIB, 12 * MIB, scale * MIB]))
            alive.append(new(0 if rng.random() < 0.02 else int(rng.integers(1, largest))))
            kinds.append(EventType.ALLOCATE)
            buffers.append(alive[-1])
        elif what < 0.96:
            at = int(rng.integers(len(alive)))
            frees = what < 0.86
            kinds.append(EventType.FREE if frees else EventType.RECORD_STREAM + int(rng.integers(3)))
            buffers.append(alive.pop(at) if frees else alive[at])
        else:
            kinds.append(EventType.EMPTY_CACHE if what < 0.97 else EventType.SYNCHRONIZE)
            buffers.append(new(0))
    return Columns(np.array(kinds, np.int8), np.array(buffers, np.int32), np.array(sizes, np.int64),
                   np.array(streams, np.int16))


def ends_of(events: Columns) -> np.ndarray:
    """Stretches of one event, then of two, and so on."""
    return np.unique(np.minimum(np.cumsum(np.arange(1, len(events.kinds) + 1)), len(events.kinds)))


def by_python(events: Columns, device: Device, monkeypatch: pytest.MonkeyPatch) -> tuple:
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_library", lambda: None)
        return simulate.simulate(events, device), simulate.highest_held(events, device, ends_of(events))


def check_same(events: Columns, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, held = by_python(events, device, monkeypatch)
    found = simulate.simulate(events, device)
    assert {name: getattr(found, name) for name in RESULTS} == {name: getattr(expected, name) for name in RESULTS}
    assert (found.out_of_memory is None) == (expected.out_of_memory is None)
    if found.out_of_memory and expected.out_of_memory:
        assert [getattr(found.out_of_memory, name) for name in ERRORS] == \
            [getattr(expected.out_of_memory, name) for name in ERRORS]
    assert np.array_equal(simulate.highest_held(events, device, ends_of(events)), held)


def test_this_installation_has_it():
    assert compiled.is_available()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 400), st.sampled_from((15, 60)), st.sampled_from(SETTINGS),
       st.sampled_from(LIMITS), st.sampled_from(("immediate", "synchronization", "launches:2")),
       st.sampled_from((0, 2 * MIB, 32 * MIB)))
def test_it_does_the_same_as_the_python_modules(seed, length, scale, text, limit, completion, step):
    settings = replace(AllocatorSettings.parse(text), address_step_bytes=step)
    device = Device(settings, limit, None if seed % 2 else 1 << 30, completion)
    with pytest.MonkeyPatch.context() as monkeypatch:
        check_same(sequence(seed, length, scale), device, monkeypatch)


@pytest.mark.parametrize("text", ("", "expandable_segments:True", "expandable_segments:True,large_segment_size_mb:32"))
def test_without_a_limit_a_request_may_exceed_the_gpu(text, monkeypatch):
    """More than the 1 1/8 of the memory for which a range of addresses is reserved."""
    events = Columns(np.array([1, 1], np.int8), np.array([0, 1], np.int32), np.array([90 * MIB, 300 * MIB], np.int64),
                     np.zeros(2, np.int16))
    device = Device(AllocatorSettings.parse(text), None, 100 * MIB)
    check_same(events, device, monkeypatch)
    assert simulate.simulate(events, device).peak_reserved_bytes >= 390 * MIB


@pytest.mark.parametrize("text", ("", "expandable_segments:True", "max_split_size_mb:200"))
@pytest.mark.parametrize("limit", (None, 40 << 30, 34 << 30))
def test_it_does_the_same_in_a_whole_job(text, limit, monkeypatch):
    job = dispatch.prepare(Workload(model="llava-1.5-7b", per_device_train_batch_size=16, sequence_length=1024,
                                    zero_stage=2, data_parallel_size=8, profile="none"))
    run = job.run(None)
    found = survival.simulate_run(run, AllocatorSettings.parse(text), limit_bytes=limit, completion="synchronization")
    monkeypatch.setattr(compiled, "_library", lambda: None)
    expected = survival.simulate_run(run, AllocatorSettings.parse(text), limit_bytes=limit,
                                     completion="synchronization")
    assert {name: getattr(found, name) for name in RESULTS} == {name: getattr(expected, name) for name in RESULTS}


@pytest.mark.parametrize("kinds, buffers", [((1, -1, -1), (0, 0, 0)), ((-1,), (0,))])
def test_a_list_that_frees_what_is_not_allocated_is_an_error_of_the_python_modules(kinds, buffers):
    events = Columns(np.array(kinds), np.array(buffers), np.array([MIB]), np.array([0]))
    with pytest.raises(KeyError):
        simulate.simulate(events, Device(AllocatorSettings()))
