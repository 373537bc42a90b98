"""An evaluation after the steps, against the real model on the emulated GPU."""

from __future__ import annotations

import json

import pytest

from predictor.answer.predict import predict
from predictor.common.errors import InputError
from predictor.events.events import Moment
from predictor.jobs import dispatch
from tests.calibrate.small_jobs import BATCH, SEQUENCE, measured_and_predicted, needs_emulator, workload
from tests.calibrate.trainer import SCALARS_BYTES, ZERO2_CONFIG, train
from tests.predictor.small import TEXT, small_config

LARGE = 16 * BATCH
LOSSES_BYTES = 4 * LARGE
"""The Trainer repeats a batch's loss for each of its samples."""


@needs_emulator
@pytest.mark.usefixtures("formula_cache")
@pytest.mark.parametrize("changes", [
    {}, {"padding": "right", "recipe": "lora", "engine": "ddp", "data_parallel_size": 2},
    {"zero_stage": 2, "data_parallel_size": 8, "rank": 7, "sdpa_backend": "flash"},
    {"mixed_precision": "bf16"}, {"dtype": "fp32", "padding": "packed"},
    {"mixed_precision": "fp16", "engine": "ddp", "data_parallel_size": 2},
    {"recipe": "lora", "quantization": {"load_in_4bit": True}},
], ids=["torch", "ddp-lora-padded", "zero2-flash", "autocast", "fp32-packed", "fp16-autocast-ddp", "qlora"])
def test_a_measured_job_is_predicted(tmp_path, changes):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", per_device_eval_batch_size=LARGE, **changes)
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").moment is Moment.EVALUATION
    assert 0 <= record.peak("requested_bytes").bytes - run.peak < SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes


def test_the_logits_of_an_evaluation_are_its_peak(tmp_path, formula_cache):
    """In bf16, in fp32, and shifted by one token for the loss: 2 + 4 + 4 bytes for each of 320 words."""
    asked = workload(tmp_path, gpu="h100-80gb", profile="none")
    small, large = (predict(asked.replace(per_device_eval_batch_size=batch)) for batch in (LARGE, 2 * LARGE))
    assert small.peak.moment is large.peak.moment is Moment.EVALUATION
    assert large.peak_requested_bytes - small.peak_requested_bytes >= LARGE * SEQUENCE * 320 * (2 + 4)


def test_an_evaluation_keeps_keys_and_values_of_every_layer(tmp_path, formula_cache):
    """The Trainer's ``use_cache`` does not reach the language model's own configuration."""
    (tmp_path / "without.json").write_text(json.dumps(small_config(use_cache=False)))
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", per_device_eval_batch_size=LARGE)
    without = asked.replace(model=str(tmp_path / "without.json"))
    cache = 2 * TEXT["num_hidden_layers"] * LARGE * SEQUENCE * TEXT["hidden_size"] * 2
    assert predict(asked).peak_requested_bytes - predict(without).peak_requested_bytes == cache


@needs_emulator
@pytest.mark.usefixtures("formula_cache")
@pytest.mark.parametrize(("keys", "arguments"), [
    ({}, {}), ({"mixed_precision": "bf16"}, {"dtype": "float32", "bf16": True}),
    ({"zero_stage": 2, "data_parallel_size": 8, "rank": 7},
     {"deepspeed": ZERO2_CONFIG, "bf16": True, "world_size": 8, "rank": 7}),
], ids=["torch", "autocast", "zero2"])
def test_the_trainers_own_evaluation_is_predicted(tmp_path, keys, arguments):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", per_device_eval_batch_size=LARGE, **keys)
    found = train(tmp_path, per_device_eval_batch_size=LARGE, eval_strategy="steps", eval_steps=3,
                  prediction_loss_only=True, **arguments)
    predicted = dispatch.prepare(asked).run(asked.capacity, keys.get("rank", 0)).peak
    assert 0 <= found.peak_requested_bytes - predicted < SCALARS_BYTES + LOSSES_BYTES


def test_an_evaluation_leaves_the_steps_as_they_are(tmp_path, formula_cache):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none")
    without, run = (dispatch.prepare(one).run(None) for one in (asked, asked.replace(per_device_eval_batch_size=LARGE)))
    steps = len(without.live)
    assert (run.live[:steps] == without.live).all() and run.live[-1] == without.live[-1]


def test_the_evaluation_of_sharded_parameters_is_refused(tmp_path):
    with pytest.raises(InputError, match="per_device_eval_batch_size is given, but the evaluation of sharded parameters"):
        workload(tmp_path, zero_stage=3, per_device_eval_batch_size=2)
