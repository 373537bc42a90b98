"""ZeRO-2's start-up, steady state and step peak, as closed forms of parameters and degree."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from predictor.common import gpus
from predictor.engine import zero2_reduction
from predictor.engine.zero_partition import partition
from predictor.events import timeline
from predictor.events.events import MOMENTS, Moment
from predictor.events.micro_step import MicroStep
from predictor.events.model_facts import ModelFacts
from predictor.events.sizes import Shape
from predictor.formula.formula import Formula
from predictor.jobs import dispatch, training_job
from predictor.model import models, parser
from predictor.model.model_config import ModelConfig
from predictor.workload.workload import Workload
from tests.predictor.formula.test_formula import key, made
from tests.predictor.small import facts_of, small_config

GIB = 1 << 30


@cache
def llava_7b() -> ModelFacts:
    """LLaVA-1.5-7B with the 32,000 tokens of the original checkpoint: 6,759,395,328 parameters train."""
    config = models.find("llava-1.5-7b")
    config.document["text_config"] |= {"vocab_size": 32000, "pad_token_id": 0}
    return facts_of(parser.build(ModelConfig("7b", config.document), attn_implementation="sdpa", recipe="finetune"))


def run(degree: int, rank: int, optim: str) -> tuple:
    """Engine events of a step whose trace has one gradient a parameter and nothing else, in reverse order."""
    facts = llava_7b()
    trainable = [i for i, p in enumerate(facts.parameters) if p.trainable][::-1]
    template = made(key()).micro
    from predictor.events.events import Buffers, EventList
    from predictor.events.sizes import SizeTable

    count = len(trainable)
    events = EventList(
        kind=np.ones(count, np.int8), buffer=np.arange(count, dtype=np.int32),
        moment=np.full(count, MOMENTS.index(Moment.BACKWARD), np.int8), step=np.ones(count, np.int8),
        buffers=Buffers(np.arange(count, dtype=np.int32), *(np.zeros(count, np.int8) for _ in range(4))),
        sizes=SizeTable.constants([facts.parameters[i].bytes for i in trainable]), names=template.events.names)
    ready = np.array([(row + 1, parameter, row) for row, parameter in enumerate(trainable)], dtype=np.int32)
    micro = MicroStep(events, ready, np.empty(0, np.int32))
    workload = Workload(model="7b", sequence_length=1024, zero_stage=2, data_parallel_size=degree, optim=optim)
    setup = training_job.setup_of(workload, Formula(micro, facts, {}))
    composed = training_job.compose(Formula(micro, facts, {}), setup, rank)
    live = timeline.running_sum(composed, composed.sizes.at(Shape(1, 1, 1), gpus.find("h100-80gb")))
    return composed, live


# degree: after start-up, steady, after backward, step peak (fused), step peak (foreach), in GiB; rank 0
WORKED = {
    1: (38.34, 88.70, 101.29, 139.06, 151.65),
    2: (25.75, 50.93, 57.24, 76.13, 82.42),
    4: (19.45, 32.04, 35.27, 44.71, 47.86),
    8: (16.30, 22.60, 24.27, 29.00, 30.57),
}


@pytest.mark.parametrize("degree", WORKED)
def test_worked_numbers_of_llava_7b(degree):
    after_init, steady, after_backward, fused, foreach = WORKED[degree]
    events, live = run(degree, 0, "adamw_torch_fused")

    def last(step: int, moment: Moment) -> float:
        return live[(events.step == step) & (events.moment == MOMENTS.index(moment))][-1] / GIB

    step_two = events.step == 2
    assert last(0, Moment.INIT) == pytest.approx(after_init, abs=0.01)
    assert last(2, Moment.OPTIMIZER_STEP) == pytest.approx(steady, abs=0.01)
    assert last(2, Moment.BACKWARD) == pytest.approx(after_backward, abs=0.06)  # the partition's straddling tensors
    assert live[step_two].max() / GIB == pytest.approx(fused, abs=0.06)
    events, live = run(degree, 0, "adamw_torch")
    assert live[events.step == 2].max() / GIB == pytest.approx(foreach, abs=0.06)


def test_trainable_and_frozen_parameters_of_the_worked_model():
    parameters = [p for p in llava_7b().parameters if not p.buffer]
    assert sum(p.numel for p in parameters if p.trainable) == 6_759_395_328
    assert sum(p.numel for p in parameters if not p.trainable) == 303_507_456


def test_partitions_cover_every_element_once_and_align():
    group = partition((0, 1, 2), (10, 7, 5), 3)
    assert group.flat_numel == 24 and group.partition_numel == 8
    assert [(s.parameter, s.rank, s.numel) for s in group.slices] == [(0, 0, 8), (0, 1, 2), (1, 1, 6), (1, 2, 1), (2, 2, 5)]


def test_round_robin_deals_parameters_to_ranks_in_turn():
    assert partition((0, 1, 2, 3, 4), (1,) * 5, 2, round_robin=True).parameters == (0, 2, 4, 1, 3)


def zero(**settings):
    from predictor.workload.deepspeed_config import read

    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2} | settings}
    return read(Workload(model="small", sequence_length=8, deepspeed=config, data_parallel_size=2), 64)


def test_a_bucket_is_flushed_before_it_would_overflow():
    groups = (partition((0, 1, 2), (4, 4, 4), 1),)
    flushes = zero2_reduction.flushes((2, 1, 0), (4, 4, 4), groups, zero(reduce_bucket_size=8))
    assert [(f.before, f.rows) for f in flushes] == [(2, (0, 1)), (None, (2,))]


def test_only_a_flush_over_several_owners_is_copied():
    groups = (partition((0, 1), (8, 8), 2),)  # rank 0 owns parameter 0, rank 1 parameter 1
    one, both = (zero2_reduction.flushes((1, 0), (8, 8), groups, zero(reduce_bucket_size=size)) for size in (8, 16))
    assert [f.copies for f in one] == [((),), ((),)]
    assert [f.copies for f in both] == [((2 * 16,),)]


def test_a_gradient_larger_than_the_bucket_is_never_copied_into_it():
    groups = (partition((0,), (100,), 1),)
    assert [f.extra_large for f in zero2_reduction.flushes((0,), (100,), groups, zero(reduce_bucket_size=10))] == [True]


def test_gradients_that_never_came_are_made_optimizer_group_after_group(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    run = dispatch.prepare(Workload(model=str(tmp_path), recipe="full", sequence_length=16, zero_stage=2,
                                    profile="none", gpu="h100-80gb")).run(None, 0)
    events = run.events
    rows = events.buffers.operator[events.buffer] == events.names.index("zero::get_all_grad_tensors")
    made_here = events.buffer[rows & (events.step == 1) & (events.kind > 0)]
    hidden, intermediate = 32, 64  # of the vision tower, whose last layer and norm come after the layer that is used
    weights = [2 * hidden * hidden] * 4 + [2 * hidden * intermediate] * 2
    others = [2 * hidden] * 6 + [2 * intermediate] + [2 * hidden] * 5
    assert run.row_bytes[events.buffers.size[made_here]].tolist() == weights + others
