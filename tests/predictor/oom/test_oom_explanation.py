"""What one message says: shares that add up, the process that failed, and the remedies that its numbers speak for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.oom.explanation import Cure, Explanation, Holder, explain
from predictor.oom.message import find
from tests.predictor.oom.wordings import State, malloc_async, torch_2_0, torch_2_11

GIB, MIB = 1 << 30, 1 << 20


def explained(state: State, wording=torch_2_11) -> Explanation:
    [message] = find(wording(state))
    return explain(message)


def shares(explanation: Explanation) -> dict[Holder, float]:
    return {share.holder: round(share.memory.bytes / GIB, 2) for share in explanation.shares}


def cures(state: State, wording=torch_2_11) -> list[Cure]:
    return [advice.cure for advice in explained(state, wording).advice]


PARTS = st.integers(0, 40 * GIB)


@given(parts=st.tuples(*[PARTS] * 7), wording=st.sampled_from([torch_2_0, torch_2_11]))
def test_the_shares_add_up_to_the_capacity(parts, wording):
    allocated, idle, pools, outside, other, hidden, free = parts
    state = State(0, GIB, allocated + idle + pools + outside + other + hidden + free, free, allocated, idle, pools,
                  this_process=allocated + idle + pools + outside, others=((7, other),))
    explanation = explained(state, wording)
    total = sum(share.memory.bytes for share in explanation.shares)
    rounding = sum(share.memory.rounding_bytes for share in explanation.shares)
    assert abs(total - state.capacity) <= 2 * rounding + 6 * MIB


def test_what_lies_outside_pytorch_is_the_process_without_its_reserved_memory():
    state = State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 4 * GIB, this_process=76 * GIB, others=((7, 3 * GIB),))
    assert shares(explained(state)) == {
        Holder.TENSORS: 70, Holder.IDLE: 4, Holder.OUTSIDE: 2, Holder.OTHER: 3, Holder.FREE: 1}


def test_in_a_container_the_process_is_found_by_its_memory():
    """PyTorch does not know its own number there, but 47 of 48 GiB in use can only be its own."""
    state = State(0, GIB, 48 * GIB, GIB // 2, 46 * GIB, GIB // 2, others=((4711, 47 * GIB), (5, GIB // 4)))
    explanation = explained(state)
    assert explanation.this_process.bytes == 47 * GIB and [p.pid for p in explanation.others] == [5]
    assert Cure.OTHER_PROCESSES not in cures(state)


def test_where_two_processes_may_have_failed_none_is_blamed():
    state = State(0, GIB, 80 * GIB, 0, 30 * GIB, 0, others=((1, 40 * GIB), (2, 40 * GIB)))
    explanation = explained(state)
    assert (explanation.this_process, explanation.others) == (None, ())
    assert [p.pid for p in explanation.unidentified] == [1, 2]


@pytest.mark.parametrize("state, expected", [
    (State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 8 * GIB), [Cure.EXPANDABLE_SEGMENTS]),
    (State(0, 2 * GIB, 80 * GIB, GIB, 77 * GIB, GIB // 2), [Cure.SMALLER_JOB]),
    (State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 0, this_process=71 * GIB, others=((9, 8 * GIB),)), [Cure.OTHER_PROCESSES]),
    (State(0, 2 * GIB, 80 * GIB, GIB, 30 * GIB, 7 * GIB, this_process=38 * GIB, others=((9, 41 * GIB),)),
     [Cure.OTHER_PROCESSES, Cure.EXPANDABLE_SEGMENTS]),  # what frees the most comes first
    (State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 0, this_process=79 * GIB), [Cure.OUTSIDE_PYTORCH]),
    (State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 0), [Cure.OUTSIDE_PYTORCH]),  # whoever it is
    (State(0, MIB, 80 * GIB, 0, 79 * GIB, 0, this_process=80 * GIB - GIB // 2), [Cure.SMALLER_JOB]),  # a usual context
    (State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 0, pools=8 * GIB), [Cure.PRIVATE_POOLS]),
    (State(0, 2 * GIB, 80 * GIB, 60 * GIB, 19 * GIB, 0, allowed=20 * GIB), [Cure.MEMORY_FRACTION]),
    (State(0, 100 * GIB, 80 * GIB, 79 * GIB, 0, 0), [Cure.SMALLER_REQUEST]),
    (State(0, 2 * MIB, 80 * GIB, 79 * GIB, 0, 0), []),  # more was free than was asked for: the message does not explain it
])
def test_only_remedies_that_the_numbers_speak_for_are_named(state, expected):
    assert cures(state) == expected


def test_a_message_that_was_cut_off_proves_no_remedy():
    [message] = find(torch_2_11(State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 8 * GIB)).partition("Of the allocated")[0])
    assert message.missing.bytes == GIB and explain(message).advice == ()


def test_before_expandable_segments_the_remedy_is_that_of_the_time():
    assert cures(State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 8 * GIB), torch_2_0) == [Cure.MAX_SPLIT_SIZE]


def test_of_cuda_malloc_async_nothing_is_said_about_the_cache():
    assert cures(State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 8 * GIB), malloc_async) == [Cure.SMALLER_JOB]


def test_the_memory_that_pytorch_could_have_is_what_it_had_and_what_was_free():
    assert explained(State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 8 * GIB)).limit.bytes == 79 * GIB
    assert explained(State(0, 2 * GIB, 80 * GIB, 60 * GIB, 19 * GIB, 0, allowed=20 * GIB)).limit.bytes == 20 * GIB
