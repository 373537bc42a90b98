"""FSDP1's flat parameters, units and reductions as closed forms, and rejected settings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.engine.fsdp1_ranks import Ranks
from predictor.engine.fsdp1_units import POST_BACKWARD_STREAM, UNSHARD_STREAM, Flat, Strategy, Unit, Units
from predictor.engine.tape import Tape
from predictor.events.model_facts import Parameter
from predictor.workload import compared, fsdp1_keys
from predictor.workload.fsdp1_keys import flattened
from predictor.workload.workload import Workload

DEGREE, NUMEL = 4, 64
FIRST = 100


def test_each_parameter_begins_at_its_alignment_and_the_whole_divides_among_the_ranks():
    assert flattened([5, 8, 3], 8, 4) == [(5, False), (3, True), (8, False), (3, False), (1, True)]


def test_without_original_parameters_nothing_is_padded():
    assert flattened([5, 8], 0, 4) == [(5, False), (8, False)]


def flat(**changes) -> Flat:
    values = {"module": "", "tensors": {0: Parameter("w", (NUMEL,), 2, True)}, "parts": ((NUMEL, False),), "degree": DEGREE,
              "loaded": 2, "stored": 2, "computed": 2, "reduced": 2, "original": True}
    return Flat(**values | changes)


def test_a_rank_updates_the_part_of_each_parameter_in_its_shard():
    tensors = {0: Parameter("a", (3, 2), 2, True), 1: Parameter("b", (10,), 2, True)}
    both = flat(tensors=tensors, parts=((6, False), (2, True), (10, False), (2, True)), degree=4)  # shards of 5
    parts = [{index: part.numel for index, part in both.of_rank(rank).items() if part.numel} for rank in range(4)]
    assert parts == [{0: 5}, {0: 1, 1: 2}, {1: 5}, {1: 3}]


PARAMETERS = st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=6)
"""Elements of a unit's parameters, and whether each trains."""


@given(st.lists(PARAMETERS, min_size=1, max_size=3), st.integers(1, 20), st.sampled_from((0, 4)), st.booleans())
def test_ranks_have_one_key_where_they_update_equally_many_elements_of_the_same_parameters(units_of, degree, alignment, original):
    number, flats = iter(range(100)), []
    for parameters in units_of:
        tensors = {next(number): Parameter("w", (numel,), 2, trains) for numel, trains in parameters}
        parts = flattened([numel for numel, _ in parameters], alignment, degree)
        flats.append(flat(tensors=tensors, parts=tuple(parts), degree=degree, original=original))
    ranks, updated = Ranks(flats), [
        {index: part.numel for one in flats for index, part in one.of_rank(rank).items() if part.numel and part.trainable}
        for rank in range(degree)]
    assert [ranks.elements(rank) for rank in range(degree)] == [sum(own.values()) for own in updated]
    for rank, other in product(range(degree), repeat=2):
        assert (ranks.key(rank) == ranks.key(other)) == (updated[rank] == updated[other])


def units(*, reshards: bool = True, prefetch: str = "BACKWARD_PRE", offloads: bool = False, **changes):
    tape = Tape(first=FIRST)
    parts = [Unit(number, flat(tensors={number: Parameter("w", (NUMEL,), 2, True)}, **changes)) for number in (1, 2)]
    return tape, Units(tape, parts, Strategy(reshards, False, prefetch, False, offloads)), *parts


def live(tape: Tape) -> int:
    return sum(_changes(tape))


def _changes(tape: Tape) -> list[int]:
    return [kind * tape.buffers.sizes[buffer - FIRST] for kind, buffer in zip(tape.event_types, tape.event_buffers)
            if kind in (1, -1) and buffer >= FIRST]


def forward(both: Units, *parts: Unit) -> None:
    for part in parts:
        both.enter(part)
        both.leave(part)
        part.needed = True


@pytest.mark.parametrize(("reshards", "kept"), [(True, 0), (False, 2)])
def test_units_that_do_not_reshard_stay_whole_after_forward(reshards, kept):
    tape, both, first, second = units(reshards=reshards)
    forward(both, first, second)
    assert live(tape) == kept * 2 * NUMEL


@pytest.mark.parametrize(("prefetch", "whole"), [("BACKWARD_PRE", 2), ("BACKWARD_POST", 1), ("NO_PREFETCH", 1)])
def test_backward_gathers_the_unit_before_ahead(prefetch, whole):
    tape, both, first, second = units(prefetch=prefetch)
    forward(both, first, second)
    both.before_backward(second)
    assert live(tape) == whole * 2 * NUMEL


def test_a_shard_that_is_cast_is_kept_until_it_is_gathered():
    tape, both, first, _ = units(stored=4)
    both.enter(first)
    assert list(np.cumsum(_changes(tape))) == [2 * NUMEL // DEGREE, 2 * NUMEL * (1 + 1 / DEGREE), 2 * NUMEL]
    assert tape.buffers.streams[-1] == UNSHARD_STREAM


@pytest.mark.parametrize(("computed", "reduced", "stored", "kept"), [(2, 2, 4, 4), (2, 4, 4, 4), (2, 2, 2, 2)])
def test_a_reduction_keeps_a_shard_in_the_dtype_of_the_parameters(computed, reduced, stored, kept):
    tape, both, first, _ = units(computed=computed, reduced=reduced, stored=stored)
    forward(both, first)
    both.before_backward(first)
    both.ready(first, 7, reduce=True)
    assert live(tape) == kept * NUMEL // DEGREE
    assert (-1, 7) in zip(tape.event_types, tape.event_buffers)
    assert set(tape.buffers.streams[-1:]) == {POST_BACKWARD_STREAM}


def test_gradients_that_are_not_reduced_yet_stay_whole_and_take_the_next_ones():
    tape, both, first, _ = units()
    for gradient in (7, 8):
        forward(both, first)
        both.before_backward(first)
        both.ready(first, gradient, reduce=False)
        both.end_backward(reduce=False)
    assert first.accumulated == 7 and (-1, 8) in zip(tape.event_types, tape.event_buffers)


@pytest.mark.parametrize(("keys", "degree"), [({"sharding_strategy": "FULL_SHARD"}, 16), ({"sharding_strategy": "HYBRID_SHARD"}, 8),
                                              ({"sharding_strategy": "HYBRID_SHARD_ZERO2", "sharding_group_size": 4}, 4)])
def test_hybrid_sharding_shares_a_parameter_among_the_gpus_of_a_group(keys, degree):
    assert fsdp1_keys.sharding_degree(fsdp1_keys.DEFAULTS | keys, 16) == degree


@pytest.mark.parametrize("keys", [{"dtype": "fp16"}, {"optim": "adamw_8bit"}, {"keep_outputs": "backward"}])
def test_what_was_not_compared_is_refused(keys):
    asked = Workload(model="llava-1.5-7b", sequence_length=1024, engine="fsdp1", data_parallel_size=2, **keys)
    with pytest.raises(Exception, match="engine fsdp1"):
        compared.check(asked)
