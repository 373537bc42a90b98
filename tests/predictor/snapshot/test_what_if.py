"""Recorded histories with other allocator settings."""

import random

import pytest

from predictor.allocator import AllocatorSettings, OutOfMemory, SimulatedDriver
from predictor.common.errors import InputError
from predictor.snapshot import read
from predictor.snapshot.reader import parse
from predictor.snapshot.recording import RecordingAllocator
from predictor.snapshot.replay import replay, settings_of
from predictor.snapshot.what_if import what_if
from tests.predictor.histories import MIB, raw, recorded, steps

GIB = 1 << 30
EXPANDABLE = AllocatorSettings(expandable_segments=True)


@pytest.mark.parametrize("name", ["llava-1.5-7b-zero2", "small-overlap", "small-out-of-memory", "random-warm",
                                  "random-warm-expandable"])
def test_with_the_recorded_settings_everything_is_as_recorded(name):
    snapshot = read(recorded(name))
    result = what_if(snapshot, 0, settings_of(snapshot.settings))
    expected = replay(snapshot, total_bytes=3_000_000_000 if "random" in name else None)
    assert result.end == expected.end
    assert result.segments == expected.segments or "expandable" in name  # some pages were refused in two attempts
    for counter in ("requested", "allocated", "active", "reserved"):
        assert getattr(result, f"peak_{counter}_bytes") == getattr(expected, f"peak_{counter}_bytes")
    assert result.failures_avoided == 0
    assert (result.failure is not None) == (expected.recorded.out_of_memory > 0)


def test_where_the_recording_ran_out_its_memory_is_known():
    assert what_if(read(recorded("random-warm")), 0, EXPANDABLE).limit_bytes == 3_000_000_000
    assert what_if(read(recorded("small-out-of-memory")), 0, EXPANDABLE).limit_bytes == 48 * MIB


def work(settings: AllocatorSettings, seed: int) -> RecordingAllocator:
    """Random work on one stream."""
    chance = random.Random(seed)
    allocator = RecordingAllocator(settings, SimulatedDriver())
    live = []
    for _ in range(300):
        draw, size, which = chance.random(), chance.randint(1, chance.choice([1, 10, 200]) * MIB), chance.random()
        if draw < 0.5 or not live:
            live.append(allocator.malloc(size))
        else:
            allocator.free(live.pop(int(which * len(live))))
    return allocator


@pytest.mark.parametrize("first, second", [("", "expandable_segments:True"), ("expandable_segments:True", ""),
                                           ("", "max_split_size_mb:64"), ("", "roundup_power2_divisions:4")])
@pytest.mark.parametrize("seed", range(10))
def test_a_program_recorded_with_one_setting_needs_with_another_what_it_does_need(first, second, seed):
    settings = AllocatorSettings.parse(second)
    result = what_if(parse(raw(work(AllocatorSettings.parse(first), seed))), 0, settings)
    real = work(settings, seed)
    assert result.peak_allocated_bytes == real.peak_allocated_bytes
    assert result.peak_reserved_bytes == real.peak_reserved_bytes
    assert (result.limit_bytes, result.perhaps_refused, result.failure) == (None, 0, None)


def test_a_call_of_empty_cache_is_made_with_other_settings_too():
    def program(settings: str) -> RecordingAllocator:
        allocator = RecordingAllocator(AllocatorSettings.parse(settings))
        allocator.free(allocator.malloc(60 * MIB))
        allocator.empty_cache()
        allocator.malloc(30 * MIB)
        return allocator

    result = what_if(parse(raw(program(""))), 0, EXPANDABLE)
    assert (result.peak_reserved_bytes, result.end.reserved_bytes) == (60 * MIB, 40 * MIB)
    assert program("expandable_segments:True").reserved_bytes == 40 * MIB
    assert result.perhaps_refused == 1  # 30 MiB more than the 60 were never there
    assert what_if(parse(raw(program(""))), 0, EXPANDABLE, 100 * MIB).perhaps_refused == 0


def test_fragmented_memory_suffices_with_expandable_segments():
    allocator = RecordingAllocator(driver=SimulatedDriver(100 * MIB))
    blocks = [allocator.malloc(20 * MIB) for _ in range(5)]
    for block in blocks[1:4]:
        allocator.free(block)
    for block in (blocks[0], blocks[4]):  # keeps pieces of two segments in use
        allocator.free(block)
        allocator.malloc(12 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(70 * MIB)
    result = what_if(parse(raw(allocator)), 0, EXPANDABLE)
    assert result.limit_bytes == 100 * MIB
    assert (result.failures_avoided, result.failure) == (1, None)


def test_a_capacity_that_is_too_small_ends_the_job():
    result = what_if(parse(raw(steps())), 0, EXPANDABLE, 40 * MIB)
    assert result.failure is not None and not result.failure.is_recorded
    assert (result.failure.requested_bytes, result.failure.reserved_bytes) == (1000, 40 * MIB)


def test_the_memory_of_the_device_in_the_snapshot_is_the_limit_less_what_is_assumed_outside():
    snapshot = parse(raw(steps(), device_total_memory=[120 * MIB]))
    result = what_if(snapshot, 0, EXPANDABLE, outside_bytes=60 * MIB)
    assert (result.total_bytes, result.limit_bytes, result.outside_bytes) == (120 * MIB, 60 * MIB, 60 * MIB)
    given = what_if(snapshot, 0, EXPANDABLE, 80 * MIB, outside_bytes=60 * MIB)
    assert (given.limit_bytes, given.outside_bytes, given.failure) == (80 * MIB, None, None)


def test_where_the_recording_ran_out_nothing_is_assumed():
    result = what_if(read(recorded("small-out-of-memory")), 0, EXPANDABLE, outside_bytes=GIB)
    assert (result.limit_bytes, result.outside_bytes) == (48 * MIB, None)


def test_a_prediction_without_a_gpu_has_no_limit():
    assert what_if(parse(raw(steps())), 0, EXPANDABLE, outside_bytes=GIB).limit_bytes is None


def test_a_capacity_below_the_recorded_peak_does_not_make_a_refusal_of_a_call_of_empty_cache():
    allocator = RecordingAllocator()
    allocator.free(allocator.malloc(60 * MIB))
    allocator.empty_cache()
    allocator.malloc(50 * MIB)
    snapshot = parse(raw(allocator, device_total_memory=[]))
    result = what_if(snapshot, 0, EXPANDABLE, 60 * MIB)
    assert result.end.reserved_bytes == what_if(snapshot, 0, EXPANDABLE).end.reserved_bytes


def test_memory_of_private_pools_is_refused():
    with pytest.raises(InputError, match="private pools"):
        what_if(read(recorded("random-warm-pools")), 0, EXPANDABLE)


def test_a_part_of_an_unknown_memory_is_refused():
    snapshot = read(recorded("small-overlap"))
    half = AllocatorSettings(per_process_memory_fraction=0.5)
    with pytest.raises(InputError, match="--capacity-bytes"):
        what_if(snapshot, 0, half)
    assert what_if(snapshot, 0, half, GIB).failure is None


def test_the_limit_is_no_less_than_what_was_reserved_in_the_recording():
    allocator = RecordingAllocator()
    allocator.malloc(60 * MIB)
    result = what_if(parse(raw(allocator, device_total_memory=[100 * MIB])), 0, EXPANDABLE, outside_bytes=60 * MIB)
    assert (result.limit_bytes, result.outside_bytes, result.failure) == (60 * MIB, None, None)
