"""The caching allocator's rules, one by one, in closed form. That they are PyTorch's: tests/calibrate/truth/test_allocator_truth.py."""

import gc

import pytest

from predictor.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemory, SimulatedDriver
from predictor.allocator.constants import DOWNWARD_STEP, FIRST_ADDRESS, LAST_ADDRESS
from predictor.common.errors import InputError

MIB, GIB = 2**20, 2**30


def allocator(settings: str = "", capacity: int | None = None, completion: str = "immediate") -> CachingAllocator:
    return CachingAllocator(AllocatorSettings.parse(settings), SimulatedDriver(capacity), completion)


def cached(simulation: CachingAllocator, *sizes: int) -> None:
    """Leave segments of these sizes free."""
    for block in [simulation.malloc(size) for size in sizes]:
        simulation.free(block)


# --- sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, block", [(1, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (2 * MIB - 511, 2 * MIB)])
def test_a_block_is_a_multiple_of_512_bytes(size, block):
    assert allocator().malloc(size).size == block


@pytest.mark.parametrize("size, segment", [
    (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB),
    (11 * MIB, 12 * MIB), (10 * GIB + 1, 10 * GIB + 2 * MIB)])
def test_a_segment_is_2_mib_or_20_mib_or_a_multiple_of_2_mib(size, segment):
    simulation = allocator()
    simulation.malloc(size)
    assert (simulation.reserved_bytes, simulation.segments) == (segment, 1)


@pytest.mark.parametrize("size, tail", [(19 * MIB, MIB), (19 * MIB - 512, 0), (5 * MIB, 0)])
def test_a_tail_of_up_to_1_mib_is_not_split_off_a_large_block_and_counts_as_allocated(size, tail):
    simulation = allocator()
    cached(simulation, 20 * MIB)
    simulation.malloc(size)
    assert (simulation.allocated_bytes - size, simulation.requested_bytes) == (tail, size)


def test_a_tail_of_512_bytes_is_split_off_a_small_block():
    simulation = allocator()
    blocks = [simulation.malloc(MIB), simulation.malloc(MIB - 512), simulation.malloc(512)]
    assert (sum(block.size for block in blocks), simulation.reserved_bytes) == (2 * MIB, 2 * MIB)


@pytest.mark.parametrize("size, block", [(1200 * MIB, 1280 * MIB), (1024 * MIB, 1024 * MIB), (1281 * MIB, 1536 * MIB)])
def test_roundup_power2_divisions_cut_the_way_to_the_next_power_of_2_in_steps(size, block):
    assert allocator("roundup_power2_divisions:4").malloc(size).size == block


def test_a_block_of_no_bytes_is_refused():
    with pytest.raises(ValueError, match="0 bytes"):
        allocator().malloc(0)


# --- which block -------------------------------------------------------------------------------------------------


def test_the_smallest_free_block_that_fits_is_taken():
    simulation = allocator()
    large, small = simulation.malloc(40 * MIB), simulation.malloc(30 * MIB)
    address = small.address
    simulation.free(large)
    simulation.free(small)
    assert simulation.malloc(25 * MIB).address == address


def test_of_equal_free_blocks_the_lowest_is_taken():
    simulation = allocator()
    blocks = [simulation.malloc(30 * MIB) for _ in range(3)]
    lowest = blocks[0].address
    for block in reversed(blocks):
        simulation.free(block)
    assert simulation.malloc(30 * MIB).address == lowest


def test_where_addresses_go_down_it_is_the_block_of_the_youngest_segment():
    simulation = CachingAllocator(AllocatorSettings(), SimulatedDriver(address_step_bytes=32 * MIB))
    older, younger = (simulation.malloc(12 * MIB) for _ in range(2))
    simulation.free(older)
    simulation.free(younger)
    assert (older.address - younger.address, simulation.malloc(12 * MIB).address) == (32 * MIB, younger.address)


def test_a_segment_beyond_the_step_takes_several():
    driver = SimulatedDriver(address_step_bytes=32 * MIB)
    first, second = driver.allocate(MIB), driver.allocate(33 * MIB)
    assert (first - second, driver.used_bytes) == (64 * MIB, 36 * MIB)
    driver.free(second)
    assert (driver.allocate(40 * MIB), driver.used_bytes) == (second, 42 * MIB)


def test_neighbours_that_are_free_become_one_block():
    simulation = allocator()
    cached(simulation, 6 * MIB, 6 * MIB, 6 * MIB)
    simulation.malloc(18 * MIB)
    assert simulation.reserved_bytes == 20 * MIB


def test_blocks_of_another_stream_are_not_taken():
    simulation = allocator()
    cached(simulation, 30 * MIB)
    simulation.malloc(30 * MIB, stream=1)
    assert simulation.reserved_bytes == 60 * MIB


def test_a_free_part_of_a_used_segment_is_inactive_split():
    simulation = allocator()
    simulation.malloc(6 * MIB)
    assert simulation.inactive_split_bytes == 14 * MIB


def test_a_block_is_not_freed_twice():
    simulation = allocator()
    block = simulation.malloc(512)
    simulation.free(block)
    with pytest.raises(ValueError, match="not allocated"):
        simulation.free(block)


# --- streams and events ------------------------------------------------------------------------------------------


def shared(completion: str) -> tuple[CachingAllocator, int]:
    """A block of 30 MiB that another stream used, freed; and its address."""
    simulation = allocator(completion=completion)
    block = simulation.malloc(30 * MIB)
    simulation.record_stream(block, 1)
    simulation.free(block)
    return simulation, block.address


def test_a_freed_block_that_another_stream_used_is_active_until_its_event_is_seen():
    simulation, _ = shared("immediate")
    assert (simulation.allocated_bytes, simulation.active_bytes) == (0, 30 * MIB)
    simulation.malloc(1)
    assert simulation.active_bytes == 512


@pytest.mark.parametrize("completion, wait", [
    ("immediate", lambda simulation: None), ("launches:3", lambda simulation: simulation.launch(3)),
    ("launches:3", CachingAllocator.synchronize), ("synchronization", CachingAllocator.synchronize)])
def test_its_memory_comes_back_when_the_event_is_complete(completion, wait):
    simulation, address = shared(completion)
    wait(simulation)
    assert simulation.malloc(30 * MIB).address == address


@pytest.mark.parametrize("completion, launches", [("launches:3", 2), ("synchronization", 10**6)])
def test_it_stays_taken_until_then(completion, launches):
    simulation, _ = shared(completion)
    simulation.launch(launches)
    simulation.malloc(30 * MIB)
    assert simulation.reserved_bytes == 60 * MIB


def test_a_use_on_its_own_stream_defers_nothing():
    simulation = allocator(completion="synchronization")
    block = simulation.malloc(512)
    simulation.record_stream(block, 0)
    simulation.free(block)
    assert simulation.active_bytes == 0


def test_the_two_halves_of_a_free_can_be_told_from_outside():
    simulation = allocator()
    block = simulation.malloc(30 * MIB)
    simulation.free_requested(block)
    assert (simulation.allocated_bytes, simulation.active_bytes, simulation.requested_bytes) == (0, *[30 * MIB] * 2)
    simulation.free_completed(block)
    assert (simulation.active_bytes, simulation.requested_bytes) == (0, 0)


# --- running out of memory ---------------------------------------------------------------------------------------


def test_cached_segments_are_released_before_memory_is_out():
    simulation = allocator(capacity=100 * MIB)
    cached(simulation, 60 * MIB)
    simulation.malloc(70 * MIB)
    assert (simulation.reserved_bytes, simulation.num_alloc_retries, simulation.num_ooms) == (70 * MIB, 1, 0)


def test_out_of_memory_says_what_was_tried():
    simulation = allocator(capacity=100 * MIB)
    simulation.malloc(60 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        simulation.malloc(41 * MIB - 1)
    error = caught.value
    assert (error.tried_to_allocate_bytes, error.requested_bytes) == (42 * MIB, 41 * MIB - 1)
    assert (error.allocated_bytes, error.free_bytes, simulation.num_ooms) == (60 * MIB, 40 * MIB, 1)


def test_a_block_that_waits_for_its_event_is_waited_for_before_memory_is_out():
    simulation = allocator(capacity=100 * MIB, completion="synchronization")
    block = simulation.malloc(60 * MIB)
    simulation.record_stream(block, 1)
    simulation.free(block)
    assert simulation.malloc(70 * MIB).size == 70 * MIB


def test_a_memory_fraction_limits_reserved_bytes():
    simulation = allocator("per_process_memory_fraction:0.5", capacity=100 * MIB)
    simulation.malloc(30 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        simulation.malloc(22 * MIB)
    assert caught.value.allowed_bytes == 50 * MIB


def test_empty_cache_releases_whole_segments_only():
    simulation = allocator()
    simulation.malloc(6 * MIB)
    cached(simulation, 30 * MIB)
    simulation.empty_cache()
    assert simulation.reserved_bytes == 20 * MIB


def test_an_oversize_block_is_not_split_for_a_smaller_request():
    simulation = allocator("max_split_size_mb:100")
    cached(simulation, 200 * MIB)
    simulation.malloc(50 * MIB)
    assert simulation.reserved_bytes == 250 * MIB


@pytest.mark.parametrize("size, reserved", [(180 * MIB + 512, 200 * MIB), (180 * MIB, 380 * MIB)])
def test_an_oversize_block_serves_a_request_that_is_less_than_20_mib_smaller(size, reserved):
    simulation = allocator("max_split_size_mb:100")
    cached(simulation, 200 * MIB)
    simulation.malloc(size)
    assert simulation.reserved_bytes == reserved


def test_with_max_split_size_only_as_much_is_released_as_is_needed():
    simulation = allocator("max_split_size_mb:100", capacity=500 * MIB)
    cached(simulation, 120 * MIB, 150 * MIB, 200 * MIB)
    simulation.malloc(110 * MIB)  # in the block of 120
    simulation.malloc(240 * MIB)
    assert (simulation.reserved_bytes, simulation.num_alloc_retries) == (120 * MIB + 240 * MIB, 0)


def test_garbage_collection_releases_the_segments_that_were_free_longest():
    simulation = allocator("garbage_collection_threshold:0.5,per_process_memory_fraction:0.99", capacity=1000 * MIB)
    cached(simulation, 300 * MIB)
    cached(simulation, 310 * MIB)
    simulation.malloc(330 * MIB)
    assert simulation.reserved_bytes == 310 * MIB + 330 * MIB


# --- expandable segments -----------------------------------------------------------------------------------------


def test_an_expandable_segment_is_mapped_in_pages_of_20_mib():
    simulation = allocator("expandable_segments:True", capacity=GIB)
    simulation.malloc(30 * MIB)
    simulation.malloc(30 * MIB)
    assert (simulation.reserved_bytes, simulation.segments) == (60 * MIB, 0)


def test_small_blocks_are_mapped_in_pages_of_2_mib():
    simulation = allocator("expandable_segments:True", capacity=GIB)
    simulation.malloc(1)
    assert simulation.reserved_bytes == 2 * MIB


def test_a_free_block_at_the_end_of_an_expandable_segment_grows():
    simulation = allocator("expandable_segments:True", capacity=GIB)
    cached(simulation, 100 * MIB)
    simulation.malloc(200 * MIB)
    assert simulation.reserved_bytes == 200 * MIB


def test_only_whole_free_pages_are_unmapped():
    simulation = allocator("expandable_segments:True", capacity=GIB)
    first, _, last = simulation.malloc(50 * MIB), simulation.malloc(512 * 3001), simulation.malloc(50 * MIB)
    simulation.free(first)
    simulation.free(last)
    simulation.empty_cache()
    assert simulation.reserved_bytes == 20 * MIB  # the page from 40 to 60 MiB


def test_no_address_is_kept_when_nothing_is_mapped():
    simulation = allocator("expandable_segments:True", capacity=GIB)
    cached(simulation, 100 * MIB, 100 * MIB)
    simulation.empty_cache()
    assert simulation.snapshot_segments() == () and simulation.driver.reserve(2 * MIB) == 0x1000_0000_0000


# --- state in and out --------------------------------------------------------------------------------------------


def history(settings: str) -> CachingAllocator:
    simulation = allocator(settings, 10 * GIB, "synchronization")
    blocks = [simulation.malloc(size, stream) for size in (1, 3 * MIB, 30 * MIB, 700 * MIB, 5000) for stream in (0, 1)]
    simulation.record_stream(blocks[3], 0)
    for block in blocks[::3]:
        simulation.free(block)
    return simulation


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:100"])
def test_an_allocator_starts_from_the_segments_of_another(settings):
    first = history(settings)
    second = allocator(settings, 10 * GIB)
    blocks = second.seed(first.snapshot_segments())
    assert second.snapshot_segments() == first.snapshot_segments()
    for name in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "segments"):
        assert getattr(second, name) == getattr(first, name)
    for block in blocks.values():
        (second.free if block.state == 1 else second.free_completed)(block)
    second.empty_cache()
    assert (second.reserved_bytes, second.driver.used_bytes) == (0, 0)


def test_a_seeded_allocator_goes_on_like_the_first():
    first = history("")
    second = allocator("", 10 * GIB, "synchronization")
    second.seed(first.snapshot_segments())
    sizes = (2 * MIB, 20 * MIB, 100, 400 * MIB)
    assert [first.malloc(size).address for size in sizes] == [second.malloc(size).address for size in sizes]


def test_a_recorded_release_takes_one_segment():
    simulation = allocator()
    first, second = simulation.malloc(30 * MIB), simulation.malloc(40 * MIB)
    for block in (first, second):
        simulation.free(block)
    simulation.release_segment(first.address)
    assert simulation.reserved_bytes == 40 * MIB


def test_a_segment_in_use_is_not_released():
    simulation = allocator()
    block = simulation.malloc(30 * MIB)
    with pytest.raises(ValueError, match="no free segment"):
        simulation.release_segment(block.address)


def test_an_observer_hears_of_segments():
    heard = []
    simulation = CachingAllocator(observer=lambda *what: heard.append(what))
    block = simulation.malloc(30 * MIB, 7)
    simulation.free(block)
    simulation.empty_cache()
    assert heard == [("segment_alloc", block.address, 30 * MIB, 7), ("segment_free", block.address, 30 * MIB, 7)]


def test_peaks_start_anew():
    simulation = allocator()
    cached(simulation, 30 * MIB)
    simulation.reset_peaks()
    simulation.malloc(1)
    assert (simulation.peak_requested_bytes, simulation.peak_allocated_bytes, simulation.peak_reserved_bytes) \
        == (1, 512, 32 * MIB)


def test_memory_is_in_proportion_to_live_blocks():
    simulation = allocator(completion="synchronization")
    for number in range(1000):
        block = simulation.malloc(512 * (1 + number % 97))
        simulation.record_stream(block, number % 3)
        simulation.free(block)
        simulation.synchronize()
    del block
    kept = [found for found in gc.get_objects() if isinstance(found, Block) and found.arena.pool is simulation.small]
    assert len(kept) <= 2  # the last one, and the rest of its segment


@pytest.mark.parametrize("step", [0, DOWNWARD_STEP])
def test_more_than_all_addresses_is_one_line(step):
    driver = SimulatedDriver(address_step_bytes=step)
    for _ in range(LAST_ADDRESS - FIRST_ADDRESS >> 40):
        driver.allocate(1 << 40)
    with pytest.raises(InputError, match="more than is left of a GPU's 48 TiB of addresses"):
        driver.allocate(1 << 40)
