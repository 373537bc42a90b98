"""ZeRO stage 0: the bytes of every rank, as closed forms of the parameters."""

from __future__ import annotations

import json

import pytest

from predictor.common.errors import InputError
from predictor.events.events import MOMENTS, Moment
from predictor.jobs import dispatch, training_job
from predictor.workload.workload import Workload
from tests.predictor.small import small_config

COUNTER_BYTES = 4


def job(directory, **changes) -> training_job.Job:
    (directory / "config.json").write_text(json.dumps(small_config()))
    return dispatch.prepare(Workload(**{
        "model": str(directory), "sequence_length": 16, "zero_stage": 0, "data_parallel_size": 2, "profile": "none",
        "gpu": "h100-80gb"} | changes))


def test_master_weights_and_states_are_there_from_start_up_on(tmp_path):
    asked = job(tmp_path)
    run = asked.run(None, 0)
    parameters = asked.formula.facts.parameters
    training = [tensor.numel for tensor in parameters if tensor.trainable]
    assert run.live[run.events.step == 0][-1] == (
        sum(tensor.bytes for tensor in parameters) + 12 * sum(training) + COUNTER_BYTES * len(training))


def test_a_step_holds_both_gradients_and_the_optimizers_root(tmp_path):
    asked = job(tmp_path, optim="adamw_torch")
    run, facts = asked.run(None, 0), asked.formula.facts
    step = (run.events.step == 2) & (run.events.moment == MOMENTS.index(Moment.OPTIMIZER_STEP))
    roots = [sum(facts.parameters[index].numel for index in group) for group in asked.setup.groups()]
    after = run.live[run.events.step == 2][-1]
    assert run.live[step].max() == after + (2 + 4) * sum(roots) + 4 * max(roots)


@pytest.mark.parametrize("keys, message", [
    ({"deepspeed": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}, "communication_data_type": "fp32"}},
     "communication_data_type fp32 is not modelled in ZeRO stage 0"),
    ({"versions": {"deepspeed": "0.17.5"}}, "stage 0 is predicted for DeepSpeed 0.17.6 and later"),
])
def test_what_is_not_modelled_is_named(tmp_path, keys, message):
    with pytest.raises(InputError, match=message):
        job(tmp_path, **keys).judge()
