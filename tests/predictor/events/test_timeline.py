"""Running sums, peaks and the closed form."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.common import gpus
from predictor.events import regimes, timeline
from predictor.events.events import FACTORS, MOMENTS, Factor, Moment
from predictor.events.sizes import Shape
from predictor.jobs import training_job
from predictor.workload.workload import Workload
from tests.predictor.formula.test_formula import TOKENS, key, made

H100 = gpus.find("h100-80gb")


@cache
def composed(degree: int = 2, rank: int = 0, **changes):
    """A run of the small model under ZeRO-2, or plain PyTorch with degree 0."""
    engine = {"zero_stage": 2, "data_parallel_size": degree} if degree else {}
    workload = Workload(model="small", sequence_length=64, per_device_train_batch_size=2, **engine, **changes)
    formula = made(key())
    return training_job.compose(formula, training_job.setup_of(workload, formula), rank)


shapes = st.builds(lambda b, i, text: Shape(b, TOKENS * i + text, b * i), st.integers(2, 64), st.integers(1, 4),
                   st.integers(1, 4000))


@settings(max_examples=30, deadline=None)
@given(shape=shapes, degree=st.sampled_from([0, 1, 2, 5]))
def test_factors_add_up_to_the_total_at_every_event(shape, degree):
    events = composed(degree, rank=max(degree - 1, 0))
    bytes_ = events.sizes.at(shape, H100)
    split = timeline.by_factor(events, bytes_, range(len(events)))
    assert np.array_equal(sum(split.values()), timeline.running_sum(events, bytes_))
    assert all((curve >= 0).all() for curve in split.values())


@settings(max_examples=30, deadline=None)
@given(shape=shapes, degree=st.sampled_from([0, 1, 2, 5]))
def test_closed_form_is_the_highest_prefix_sum(shape, degree):
    events = composed(degree)
    form = timeline.closed_form(events, at_least=regimes.smallest_shape(regimes.Regime.parse(("many", "many", "whole")), TOKENS))
    points = [np.array([value]) for value in shape]
    assert form.peaks(*points, H100)[0] == timeline.running_sum(events, events.sizes.at(shape, H100)).max()


@settings(max_examples=30, deadline=None)
@given(shape=shapes)
def test_what_is_alive_at_an_event_adds_up_to_the_running_sum(shape):
    events = composed()
    bytes_ = events.sizes.at(shape, H100)
    live = timeline.running_sum(events, bytes_)
    at = int(np.argmax(live))
    assert bytes_[events.buffers.size[timeline.alive_buffers(events, at)]].sum() == live[at]


def test_no_buffer_is_freed_before_it_lives_or_twice():
    for degree in (0, 1, 3):
        events = composed(degree)
        state = np.zeros(len(events.buffers), dtype=int)
        for kind, buffer in zip(events.sign.tolist(), events.buffer.tolist()):
            state[buffer] += kind
            assert state[buffer] in (0, 1)


def test_steps_two_and_three_are_alike():
    events = composed()
    sizes = events.sizes.at(Shape(2, 64, 2), H100)
    live = timeline.running_sum(events, sizes)
    assert np.array_equal(live[events.step == 2], live[events.step == 3])


def test_optimizer_states_appear_in_the_first_step():
    events = composed(1)
    sizes = events.sizes.at(Shape(2, 64, 2), H100)
    states = timeline.by_factor(events, sizes, range(len(events)))[Factor.OPTIMIZER_STATES]
    trainable = sum(p.numel for p in made(key()).facts.parameters if p.trainable)
    padded = sum(-(-n // 2) * 2 for n in group_sizes())
    assert states[events.step == 0][-1] == 4 * padded
    steps, norm = 4 * len(group_sizes()), 4  # AdamW's counters of steps, and the norm that DeepSpeed keeps
    assert states[events.step == 1][-1] == 12 * padded + steps + norm
    assert padded - trainable < 4


def group_sizes() -> list[int]:
    parameters = [p for p in made(key()).facts.parameters if p.trainable]
    return [sum(p.numel for p in parameters if p.decay is decay) for decay in (True, False)]


def test_every_factor_has_one_name():
    assert len({factor.value for factor in FACTORS}) == len(FACTORS)


def test_what_a_moment_finds_counts_as_its_own():
    """Two moments of step 1 and one of step 2; the second finds the most bytes, which the last event of the first left."""
    forward, backward = MOMENTS.index(Moment.FORWARD), MOMENTS.index(Moment.BACKWARD)
    highest = timeline.highest_by_moment(
        np.array([5, 9, 4, 6, 7]), np.array([1, 1, 1, 1, 2], dtype=np.int8),
        np.array([forward, forward, backward, backward, forward], dtype=np.int8))
    assert highest == {(1, Moment.FORWARD): 1, (1, Moment.BACKWARD): 1, (2, Moment.FORWARD): 4}
