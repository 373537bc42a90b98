"""A session of the allocator gives what one simulation of all its lists gives, compiled and in Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.allocator import AllocatorSettings, compiled
from predictor.allocator.session import Session
from predictor.allocator.simulate import Columns, Device, simulate
from tests.predictor.allocator.test_compiled import LIMITS, MIB, SETTINGS, sequence


def parts(events: Columns, cuts: list[int]) -> list[Columns]:
    ends = [0, *sorted(cut for cut in cuts if cut < len(events.kinds)), len(events.kinds)]
    return [Columns(events.kinds[a:b], events.buffers[a:b], events.sizes, events.streams)
            for a, b in zip(ends, ends[1:])]


def played(events: Columns, cuts: list[int], device: Device) -> tuple:
    session = Session(device)
    for number, part in enumerate(parts(events, cuts)):
        failure = session.play(part)
        if failure:
            return number, failure.index, vars(failure.error), session.state()
    return None, None, None, session.state()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 300), st.sampled_from(SETTINGS), st.sampled_from(LIMITS),
       st.lists(st.integers(0, 300), max_size=3))
def test_lists_in_turn_give_what_one_list_gives(seed, length, text, limit, cuts):
    events, device = sequence(seed, length, 40), Device(AllocatorSettings.parse(text), limit, 1 << 30)
    whole = simulate(events, device)
    compiled_result = played(events, cuts, device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_library", lambda: None)
        assert played(events, cuts, device) == compiled_result
    number, index, _, state = compiled_result
    failed_at = None if number is None else index + sum(len(part.kinds) for part in parts(events, cuts)[:number])
    assert failed_at == whole.failed_at
    assert (state.peak_requested_bytes, state.peak_allocated_bytes, state.peak_reserved_bytes, state.reserved_bytes) \
        == (whole.peak_requested_bytes, whole.peak_allocated_bytes, whole.peak_reserved_bytes, whole.reserved_bytes)


@pytest.mark.parametrize("library", ("compiled", "python"))
def test_it_counts_segments_and_starts_peaks_anew(library, monkeypatch):
    if library == "python":
        monkeypatch.setattr(compiled, "_library", lambda: None)
    session, sizes, streams = Session(Device(AllocatorSettings())), np.array([30 * MIB, 50 * MIB]), np.zeros(2, int)
    session.play(Columns(np.array([1, 1, -1]), np.array([0, 1, 0]), sizes, streams))
    session.reset_peaks()
    session.play(Columns(np.array([2]), np.array([0]), np.array([0]), np.zeros(1, int)))  # empty_cache
    state = session.state()
    assert (state.granted, state.returned) == (2, 1)
    assert (state.peak_allocated_bytes, state.reserved_bytes, state.peak_reserved_bytes) == (50 * MIB, 50 * MIB,
                                                                                           80 * MIB)


@pytest.mark.parametrize("library", ("compiled", "python"))
def test_a_buffer_that_is_freed_twice_is_an_error(library, monkeypatch):
    if library == "python":
        monkeypatch.setattr(compiled, "_library", lambda: None)
    with pytest.raises(ValueError, match="not allocated"):
        Session(Device(AllocatorSettings())).play(
            Columns(np.array([1, -1, -1]), np.array([0, 0, 0]), np.array([MIB]), np.array([0])))
