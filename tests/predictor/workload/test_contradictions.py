"""The tables of contradictions name existing keys, and their order decides which message comes first."""

from __future__ import annotations

import pytest

from predictor.common.errors import InputError
from predictor.workload.completion import complete
from predictor.workload.contradictions import (
    CONTRADICTIONS,
    IN_A_DEEPSPEED_CONFIG,
    KEY_FROM_DETAIL,
    NOT_PREDICTED,
    check,
)
from predictor.workload.deepspeed_keys import READ, SECTIONS, known
from predictor.workload.key_problem import KeyProblem
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload

OF_A_CONFIG = {*READ, *SECTIONS, *known(""), *known("zero_optimization")}
DEFAULTS = {name: entry.metadata["default"] for name, entry in KEYS.items()}


@pytest.mark.parametrize("line", (*CONTRADICTIONS, *NOT_PREDICTED), ids=lambda line: "-".join(filter(None, line.keys)))
def test_every_key_of_a_line_is_one_of_a_workload_or_of_a_deepspeed_config(line):
    assert set(line.keys) - {KEY_FROM_DETAIL} <= KEYS.keys() | OF_A_CONFIG


def test_a_config_alone_is_checked_by_the_same_lines():
    assert set(IN_A_DEEPSPEED_CONFIG) < set(CONTRADICTIONS)


def test_keys_that_contradict_each_other_are_completed_before_they_are_refused():
    case = complete({"model": "m", "recipe": "full", "lora": {"r": 4}, "engine": "deepspeed", "zero_stage": 0,
                     "offload": "all", "optim": "sgd", "optim_args": {"nesterov": "x"}}, DEFAULTS, "deepspeed")
    assert case.values.keys() == KEYS.keys()
    with pytest.raises(KeyProblem, match="lora is given, but recipe is full"):
        check(case, CONTRADICTIONS)


def test_the_first_line_that_finds_something_decides():
    wrong = {"trainable": ("a",), "frozen": ("a",), "rank": 9}
    with pytest.raises(KeyProblem, match="model is not given"):
        check(complete(wrong, DEFAULTS, "deepspeed"), CONTRADICTIONS)
    with pytest.raises(KeyProblem, match='frozen names "a", and so does trainable'):
        check(complete({"model": "m"} | wrong, DEFAULTS, "deepspeed"), CONTRADICTIONS)


def _config(stage, **keys):
    return {"deepspeed": {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}} | keys}


OLD, OLDEST = {"versions": {"deepspeed": "0.18.2"}}, {"versions": {"deepspeed": "0.14.3"}}
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
FP32_MESSAGES = {"communication_data_type": "fp32"}
EXAMPLES = [
    ({"engine": "fsdp2", "dtype": "fp32", "fsdp": {"param_dtype": "bf16"}},
     "dtype is fp32, which is not predicted with fsdp param_dtype yet: give dtype bf16 (what trains is kept in fp32 all the "
     "same), or use engine fsdp1"),
    (OLDEST | {"zero_stage": 0}, "versions: ZeRO stage 0 is predicted for DeepSpeed 0.17.6 and later"),
    (_config(0, **FP32_SUMS), "deepspeed: data_types.grad_accum_dtype fp32 is not modelled in ZeRO stage 0: leave it out"),
    (_config(0, **FP32_MESSAGES), "deepspeed: communication_data_type fp32 is not modelled in ZeRO stage 0: leave it out"),
    (_config(2, **FP32_SUMS),
     "deepspeed: data_types.grad_accum_dtype fp32 is not modelled yet: leave it out or set bf16"),
    (OLDEST | {"zero_stage": 1}, "versions: ZeRO stage 1 is predicted for DeepSpeed 0.14.4 and later"),
    (OLDEST | {"zero_stage": 2, "offload": "optimizer"},
     "versions: offload is predicted for DeepSpeed 0.14.4 and later"),
    (_config(2, zero_optimization={"stage": 2, "parameter_alignment": True}),
     "deepspeed: zero_optimization.parameter_alignment is not modelled yet: leave it out"),
    (OLDEST | {"zero_stage": 3}, "versions: ZeRO stage 3 is predicted for DeepSpeed 0.14.4 and later, not 0.14.3"),
    ({"versions": {"deepspeed": "0.17.2"}, "zero_stage": 3},
     "versions: ZeRO stage 3 of DeepSpeed 0.17.2 miscounts its bucket, which is not predicted: use another release"),
    (_config(3, **FP32_SUMS),
     "deepspeed: data_types.grad_accum_dtype fp32 is not modelled yet in ZeRO stage 3: leave it out or set bf16"),
    (_config(3, **FP32_MESSAGES),
     "deepspeed: communication_data_type other than bf16 is not modelled yet in ZeRO stage 3: leave it out"),
]
"""An example of each line of ``NOT_PREDICTED``, in its order."""


@pytest.mark.parametrize("line, example", list(zip(NOT_PREDICTED, EXAMPLES, strict=True)),
                         ids=[message for _, message in EXAMPLES])
def test_a_setting_that_is_not_predicted_yet_is_named_before_a_prediction(line, example):
    keys, message = example
    measured = Workload(model="m", sequence_length=8, data_parallel_size=2, **keys)
    assert [other for other in NOT_PREDICTED if other.detail(measured.given.completed())] == [line]
    with pytest.raises(InputError) as caught:
        measured.check_predicted()
    assert str(caught.value) == message


def test_a_setting_without_effect_in_its_release_is_predicted():
    Workload(model="m", sequence_length=8, data_parallel_size=2, **OLD, **_config(2, **FP32_SUMS)).check_predicted()


@pytest.mark.parametrize("keys", [{"recipe": "lora"}, {"recipe": "pretrain"}])
def test_frozen_weights_that_an_old_zero_3_cannot_recompute_are_named(keys):
    def asked(**more):
        return Workload(model="m", sequence_length=8, zero_stage=3, data_parallel_size=2, **keys, **more)

    with pytest.raises(InputError, match="ZeRO stage 3 of DeepSpeed 0.18.2 stops with a CheckpointError .* use_reentrant"):
        asked(**OLD)
    asked(**OLD, gradient_checkpointing_kwargs={"use_reentrant": True})
    asked(**OLD, gradient_checkpointing=False)
    asked(versions={"deepspeed": "0.19.3"})
