"""Precisions against the libraries themselves: measured jobs and Hugging Face's Trainer on the emulated GPU."""

from __future__ import annotations

import pytest

from predictor.jobs import dispatch, survival
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator, workload
from tests.calibrate.trainer import SCALARS_BYTES, train

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

RANK = {"data_parallel_size": 4, "rank": 3}


@pytest.mark.parametrize("changes", [
    {"dtype": "fp32", "padding": "right", "gradient_checkpointing": False},
    {"dtype": "fp16", "attn_implementation": "eager", "gpu": "l40s", "optim": "rmsprop_bnb"},
    {"mixed_precision": "bf16", "engine": "ddp", "data_parallel_size": 2, "gradient_accumulation_steps": 2},
    {"mixed_precision": "fp16", "recipe": "lora", "gradient_checkpointing": False, "max_grad_norm": 0.0},
    {"deepspeed": {"fp16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True}}, **RANK},
    {"dtype": "fp32", "zero_stage": 1, "param_groups": "single", "gradient_accumulation_steps": 2, **RANK},
    {"dtype": "fp16", "zero_stage": 3, **RANK},
    {"dtype": "fp32", "zero_stage": 3, "padding": "right", **RANK},
], ids=["fp32-padded", "fp16-eager", "bf16-mixed-ddp", "fp16-mixed-lora", "fp16-zero2", "fp32-zero1",
        "fp16-zero3", "fp32-zero3"])
def test_a_measured_job_is_predicted(tmp_path, changes):
    asked = workload(tmp_path, **{"gpu": "h100-80gb", "profile": "none"} | changes)
    record, run, simulation = measured_and_predicted(asked)
    assert 0 <= record.peak("requested_bytes").bytes - run.peak < SCALARS_BYTES
    assert 0 <= record.peak("reserved_bytes").bytes - simulation.peak_reserved_bytes <= survival.PAGE_BYTES


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_trainer_in_mixed_precision_is_predicted(tmp_path, dtype):
    asked = workload(tmp_path, mixed_precision=dtype, gpu="h100-80gb", profile="none")
    found = train(tmp_path, dtype="float32", **{dtype: True})
    predicted = dispatch.prepare(asked).run(asked.capacity, 0).peak
    assert 0 <= found.peak_requested_bytes - predicted < SCALARS_BYTES
