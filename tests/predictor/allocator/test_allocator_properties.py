"""Invariants of the allocator after any events, with any settings."""

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.allocator import AllocatorSettings, CachingAllocator, OutOfMemory, SimulatedDriver

MIB = 2**20
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:20", "roundup_power2_divisions:4",
            "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
            "large_segment_size_mb:32,max_split_size_mb:32,expandable_segments:True")
COMPLETIONS = ("immediate", "launches:2", "synchronization")
sizes = st.one_of(st.integers(1, 2000), st.integers(1, 200 * MIB), st.sampled_from((MIB, 2 * MIB, 20 * MIB)))
events = st.lists(st.one_of(
    st.tuples(st.just("malloc"), sizes, st.integers(0, 2)),
    st.tuples(st.sampled_from(("free", "share")), st.integers(0, 1000), st.integers(0, 2)),
    st.tuples(st.sampled_from(("empty_cache", "launch", "synchronize")))), max_size=60)  # fmt: skip
jobs = st.tuples(st.sampled_from(SETTINGS), st.sampled_from(COMPLETIONS), events)


def play(job) -> tuple[CachingAllocator, list]:
    """The allocator after the events, and the blocks alive."""
    text, completion, todo = job
    allocator = CachingAllocator(AllocatorSettings.parse(text), SimulatedDriver(500 * MIB), completion)
    alive = []
    for kind, *arguments in todo:
        if kind == "malloc":
            try:
                alive.append(allocator.malloc(*arguments))
            except OutOfMemory:
                continue
        elif kind in ("free", "share"):
            if alive and kind == "free":
                allocator.free(alive.pop(arguments[0] % len(alive)))
            elif alive:
                allocator.record_stream(alive[arguments[0] % len(alive)], arguments[1])
        else:
            getattr(allocator, kind)()
    return allocator, alive


@settings(max_examples=150, deadline=None)
@given(jobs)
def test_blocks_follow_each_other_without_gap_and_segments_do_not_overlap(job):
    allocator, _ = play(job)
    end = 0
    for segment in allocator.snapshot_segments():
        assert segment.address >= end
        end = segment.address
        for block in segment.blocks:
            assert block.address == end and block.size > 0
            end += block.size
        assert end == segment.address + segment.total_size


@settings(max_examples=150, deadline=None)
@given(jobs)
def test_the_statistics_are_sums_over_blocks(job):
    allocator, alive = play(job)
    segments = allocator.snapshot_segments()
    blocks = [block for segment in segments for block in segment.blocks]

    def total(*states: str) -> int:
        return sum(block.size for block in blocks if block.state in states)

    assert allocator.allocated_bytes == total("active_allocated") == sum(block.size for block in alive)
    assert allocator.active_bytes == total("active_allocated", "active_pending_free")
    assert allocator.requested_bytes == sum(block.requested_size for block in blocks)
    assert allocator.reserved_bytes == sum(segment.total_size for segment in segments) <= 500 * MIB
    assert allocator.segments == sum(not segment.is_expandable for segment in segments)


@settings(max_examples=150, deadline=None)
@given(jobs)
def test_two_free_blocks_are_never_neighbours(job):
    allocator, _ = play(job)
    for segment in allocator.snapshot_segments():
        states = [block.state for block in segment.blocks]
        assert ("inactive", "inactive") not in zip(states, states[1:])


@settings(max_examples=150, deadline=None)
@given(jobs)
def test_everything_is_given_back(job):
    allocator, alive = play(job)
    for block in alive:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.requested_bytes, allocator.active_bytes, allocator.reserved_bytes) == (0, 0, 0)
    assert allocator.driver.used_bytes == 0 and allocator.snapshot_segments() == ()
