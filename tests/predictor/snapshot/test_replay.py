"""Replayed histories: decisions, peaks, recordings that start in mid-run, differences, and invalid histories."""

import random

import pytest

from predictor.allocator import AllocatorSettings, OutOfMemory, SimulatedDriver
from predictor.common.errors import InputError
from predictor.snapshot import read
from predictor.snapshot.recording import RecordingAllocator
from predictor.snapshot.replay import Totals, replay
from predictor.snapshot.replay_pass import Divergence
from tests.predictor.histories import MIB, mapped, raw, recorded, replayed, steps

GIB = 1 << 30
KEPT = ["llava-1.5-7b-zero2", "small-overlap", "small-out-of-memory", "random-warm", "random-warm-expandable",
        "random-warm-pools"]

# --- recorded histories --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
def test_every_decision_of_a_recorded_history_is_the_same(name):
    result = replay(read(recorded(name)), total_bytes=3_000_000_000 if "random" in name else None)
    assert result.divergence is None and result.agrees
    assert result.segments == result.recorded.segments
    assert result.peak_reserved_bytes == result.recorded.peak_reserved_bytes
    assert result.peak_requested_bytes == result.recorded.peak_requested_bytes
    assert result.end == result.recorded.end


def test_llava_has_the_peaks_that_pytorch_counted():
    result = replay(read(recorded("llava-1.5-7b-zero2")))
    assert (result.events, len(result.segments)) == (64_295, 285)
    assert result.peak_requested_bytes == 36_126_125_220
    assert result.peak_allocated_bytes == result.peak_active_bytes == 36_129_571_328
    assert result.peak_reserved_bytes == 43_083_890_688


def test_histories_that_begin_in_mid_run_begin_with_memory():
    for name in KEPT[3:]:
        result = replay(read(recorded(name)), total_bytes=3_000_000_000)
        assert result.start.reserved_bytes > 0 and result.recorded.out_of_memory > 0


def test_overlap_is_recorded_on_two_streams():
    assert len(set(read(recorded("small-overlap")).traces[0].stream.tolist())) == 2


def test_the_job_that_died_died_in_the_simulation_too():
    result = replay(read(recorded("small-out-of-memory")))
    assert result.recorded.out_of_memory == 1 and result.divergence is None
    assert result.segments == (2 * MIB, 32 * MIB, 2 * MIB)


# --- hand-made histories -------------------------------------------------------------------------------


def test_sizes_and_peaks_in_closed_form():
    result = replayed(raw(steps()))
    assert result.segments == (30 * MIB, 20 * MIB, 2 * MIB)
    assert result.peak_reserved_bytes == 52 * MIB
    assert result.peak_requested_bytes == result.peak_allocated_bytes == 39 * MIB
    assert result.end == Totals(34 * MIB + 1000, 34 * MIB + 1024, 34 * MIB + 1024, 52 * MIB)


@pytest.mark.parametrize("since", range(len(steps().entries) + 1))
def test_a_history_cut_anywhere_begins_with_what_was_there(since):
    allocator = steps()
    result, whole = replayed(raw(allocator, since)), replayed(raw(allocator))
    assert result.divergence is None
    assert sorted(result.segments) == sorted(whole.segments)
    assert result.end == whole.end


@pytest.mark.parametrize("conf", ["", "roundup_power2_divisions:4", "expandable_segments:True"])
@pytest.mark.parametrize("seed", range(20))
def test_random_histories_cut_anywhere_are_replayed(conf, seed):
    chance = random.Random(seed)
    allocator = random_work(chance, AllocatorSettings.parse(conf))
    for _ in range(4):
        since = chance.randrange(len(allocator.entries))
        result = replayed(raw(allocator, since), total_bytes=GIB)
        assert result.divergence is None or result.guesses
        assert result.peak_reserved_bytes == result.recorded.peak_reserved_bytes or result.guesses


def random_work(chance: random.Random, settings: AllocatorSettings) -> RecordingAllocator:
    allocator = RecordingAllocator(settings, SimulatedDriver(GIB), completion="synchronization")
    live = []
    for _ in range(300):
        if chance.random() < 0.5 or not live:
            try:
                live.append(allocator.malloc(chance.randint(1, chance.choice([1, 10, 200]) * MIB), chance.randrange(2)))
            except OutOfMemory:
                del live[0]
            if live and chance.random() < 0.3:
                allocator.record_stream(chance.choice(live), 1)
        elif chance.random() < 0.02:
            allocator.empty_cache()
        else:
            allocator.free(live.pop(chance.randrange(len(live))))
    return allocator


def test_a_tail_that_was_not_split_off_belongs_to_its_block():
    allocator = RecordingAllocator()
    block = allocator.malloc(19 * MIB + MIB // 2)  # of 20 MiB: the rest of 0.5 MiB stays with it
    since = len(allocator.entries)
    allocator.free(block)
    result = replayed(raw(allocator, since))
    assert (result.start.allocated_bytes, result.start.requested_bytes) == (20 * MIB, 19 * MIB + MIB // 2)
    assert result.guesses == 0


def test_the_next_block_says_how_large_a_tail_is():
    allocator = RecordingAllocator()
    allocator.free(allocator.malloc(30 * MIB))
    low, high = allocator.malloc(6 * MIB + MIB // 2), allocator.malloc(20 * MIB)
    allocator.free(low)
    low = allocator.malloc(6 * MIB)  # in 6.5 MiB: a tail of 0.5 MiB
    allocator.free(high)
    since = len(allocator.entries)
    allocator.malloc(3 * MIB)
    allocator.free(low)
    result = replayed(raw(allocator, since))
    assert result.start.allocated_bytes == 6 * MIB + MIB // 2 and result.guesses == 0


def test_without_a_next_block_the_size_is_a_guess():
    allocator = RecordingAllocator()
    allocator.free(allocator.malloc(30 * MIB))
    low, high = allocator.malloc(6 * MIB + MIB // 2), allocator.malloc(20 * MIB)
    allocator.free(low)
    low = allocator.malloc(6 * MIB)
    allocator.free(high)
    since = len(allocator.entries)
    allocator.free(low)
    result = replayed(raw(allocator, since))
    assert result.start.allocated_bytes == 6 * MIB and result.guesses == 1


# --- differences -----------------------------------------------------------------------------------------


def test_another_setting_makes_a_difference():
    result = replay(read(recorded("llava-1.5-7b-zero2")), settings=AllocatorSettings.parse("max_split_size_mb:100"))
    assert result.agrees is False
    assert result.divergence == Divergence(1788, "no segment", "segment_alloc of 12,582,912 bytes")
    assert result.peak_reserved_bytes > result.recorded.peak_reserved_bytes == 43_083_890_688


@pytest.mark.parametrize("conf", ["max_split_size_mb:40", "expandable_segments:True", "large_segment_size_mb:64"])
@pytest.mark.parametrize("name", ["small-overlap", "random-warm"])
def test_after_a_difference_the_replay_goes_on_to_the_end(name, conf):
    result = replay(read(recorded(name)), settings=AllocatorSettings.parse(conf))
    assert result.divergence is not None or result.segments == result.recorded.segments
    assert result.peak_requested_bytes == result.recorded.peak_requested_bytes
    assert result.end.requested_bytes == result.recorded.end.requested_bytes


def test_settings_that_cannot_have_led_there_are_refused():
    with pytest.raises(InputError, match="it was recorded with other allocator settings"):
        replay(read(recorded("random-warm")), settings=AllocatorSettings.parse("roundup_power2_divisions:2"))


def test_a_block_elsewhere_is_the_first_difference():
    value = raw(steps())
    alloc = value["device_traces"][0][4]  # the 4 MiB behind the 5 MiB
    block = next(b for s in value["segments"] for b in s["blocks"] if b["address"] == alloc["addr"])
    assert (alloc["action"], alloc["size"], block["state"]) == ("alloc", 4 * MIB, "active_allocated")
    at = alloc["addr"]
    alloc["addr"] += MIB
    segment = next(s for s in value["segments"] if s["total_size"] == 20 * MIB)
    segment["blocks"] = [
        {"size": 6 * MIB, "requested_size": 0, "state": "inactive"},
        {"size": 4 * MIB, "requested_size": 4 * MIB, "state": "active_allocated"},
        {"size": 10 * MIB, "requested_size": 0, "state": "inactive"}]
    assert replayed(value).divergence == Divergence(
        4, f"a block at address {at + MIB:#x}", f"at address {at:#x}")


def test_a_segment_of_another_size_is_a_difference():
    value = raw(steps())
    value["device_traces"][0][2]["size"] = 24 * MIB
    value["segments"][1]["total_size"] = 24 * MIB
    value["segments"][1]["blocks"][-1]["size"] += 4 * MIB
    value["segments"] = value["segments"][:2]
    del value["device_traces"][0][-2:]  # what lies behind it
    result = replayed(value)
    assert result.divergence.entry == 3
    assert "segment_alloc of 25,165,824 bytes" in result.divergence.recorded
    assert result.divergence.simulated == "segment_alloc of 20,971,520 bytes"


def test_running_out_of_memory_with_room_is_a_difference():
    value = raw(steps())
    value["device_traces"][0].append({"action": "oom", "device_free": 0, "size": 5 * MIB, "stream": 0})
    result = replayed(value)
    assert result.divergence.entry == len(value["device_traces"][0]) - 1
    assert result.divergence.recorded == "a block at address none: out of memory"


def test_giving_back_a_segment_in_use_is_a_difference():
    value = raw(steps())
    segment = value["segments"].pop(0)
    value["device_traces"][0].append(
        {"action": "segment_free", "addr": segment["address"], "size": segment["total_size"], "stream": 0})
    with pytest.raises(InputError, match="does not lead to the segments"):
        replayed(value)


def test_the_devices_memory_is_taken_from_the_snapshot():
    assert replayed(raw(mapped(100 * MIB))).divergence is None
    assert replayed(raw(mapped(100 * MIB), device_total_memory=[])).divergence is not None


# --- what one history can mean ------------------------------------------------------------------------------


def test_a_block_that_empty_cache_took_away_is_not_searched_for():
    allocator = RecordingAllocator(AllocatorSettings.parse("max_split_size_mb:32"))
    allocator.free(allocator.malloc(100 * MIB))
    allocator.empty_cache()
    allocator.malloc(95 * MIB)
    result = replayed(raw(allocator))
    assert result.divergence is None and result.segments == (100 * MIB, 96 * MIB)


def test_the_same_release_by_the_allocator_itself_is_replayed():
    allocator = RecordingAllocator(AllocatorSettings.parse("max_split_size_mb:32"), SimulatedDriver(150 * MIB))
    allocator.free(allocator.malloc(100 * MIB))
    allocator.malloc(60 * MIB)  # no more than 20 MiB larger may a block be
    result = replayed(raw(allocator))
    assert result.divergence is None and result.segments == (100 * MIB, 60 * MIB)


def test_addresses_that_a_failed_allocation_reserved_are_used_later():
    allocator = RecordingAllocator(AllocatorSettings(expandable_segments=True), SimulatedDriver(110 * MIB))
    allocator.malloc(70 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(50 * MIB, stream=7)
    allocator.malloc(MIB)
    allocator.malloc(15 * MIB, stream=7)
    result = replayed(raw(allocator))
    assert result.divergence is None and result.segments == (80 * MIB, 2 * MIB, 20 * MIB)


# --- what is no history ------------------------------------------------------------------------------------


def test_nothing_recorded_is_nothing_to_compare():
    allocator = steps()
    result = replayed(raw(allocator, len(allocator.entries)))
    assert result.agrees is None and result.events == 0
    assert result.start == result.end == result.recorded.end
    assert sorted(result.segments) == [2 * MIB, 20 * MIB, 30 * MIB]


@pytest.mark.parametrize("entry, expected", [
    ({"action": "alloc", "addr": 512, "size": 512, "stream": 0}, "alloc of 512 bytes at 0x200, does not match the block that is there"),
    ({"action": "free_requested", "addr": 512, "size": 512, "stream": 0}, "does not match the pending block that is there afterwards"),
    ({"action": "free_completed", "addr": 512, "size": 512, "stream": 0}, "is outside of every segment"),
    ({"action": "segment_alloc", "addr": 512, "size": 512, "stream": 0}, "is outside of every segment"),
])
def test_a_history_of_other_segments_is_refused(entry, expected):
    value = raw(steps())
    value["device_traces"][0].append(entry)
    with pytest.raises(InputError, match=expected):
        replayed(value)


def test_an_overlapping_segment_given_back_is_refused():
    value = raw(steps())
    value["device_traces"][0].append({"action": "segment_free", "addr": value["segments"][0]["address"] + 512,
                                      "size": 512, "stream": 0})
    with pytest.raises(InputError, match="overlaps another segment"):
        replayed(value)


def test_an_allocation_that_pytorch_never_gives_is_refused():
    value = raw(steps(), 0, segments=[{
        "device": 0, "address": 512, "total_size": 1 << 62, "stream": 0, "segment_type": "large",
        "blocks": [{"size": 1 << 62, "requested_size": 1 << 62, "state": "active_allocated"}]}])
    value["device_traces"] = [[{"action": action, "addr": 512, "size": 1 << 62, "stream": 0}
                               for action in ("segment_alloc", "alloc")]]
    with pytest.raises(InputError, match="contradicts itself at entry 1, alloc of 4,611,686,018,427,387,904 bytes"):
        replayed(value)


def test_a_block_larger_than_the_range_of_addresses_of_the_given_capacity_is_followed():
    """As if a job had been recorded on a larger GPU: the range is then as long as the block."""
    allocator = RecordingAllocator(AllocatorSettings(expandable_segments=True))
    allocator.malloc(30 * MIB)
    replayed(raw(allocator), total_bytes=MIB)


def test_a_beginning_that_contradicts_itself_is_refused():
    allocator = RecordingAllocator(AllocatorSettings(expandable_segments=True))
    allocator.malloc(15 * MIB)
    value = raw(allocator)
    trace, at = value["device_traces"][0], value["segments"][0]["address"]
    trace[:0] = [{"action": "segment_map", "addr": at + 12 * MIB, "size": 2 * MIB, "stream": 0},
                 {"action": "segment_unmap", "addr": at + 12 * MIB, "size": 1 << 62, "stream": 0}]
    with pytest.raises(InputError, match="contradicts itself in the segments that it began with: record it again"):
        replayed(value)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="it has no device 3: it lists 1"):
        replayed(raw(steps()), device=3)


def test_private_pools_in_expandable_segments_are_refused():
    allocator = RecordingAllocator(AllocatorSettings(expandable_segments=True))
    allocator.malloc(MIB)
    value = raw(allocator)
    value["segments"][0]["segment_pool_id"] = (0, 1)
    with pytest.raises(InputError, match="private pools"):
        replayed(value)
