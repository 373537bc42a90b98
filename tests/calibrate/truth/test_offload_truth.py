"""Offloading under DeepSpeed in small jobs on the emulated GPU against its prediction."""

from __future__ import annotations

import json

import pytest

from calibrate.measure.measure import measure
from predictor.answer.predict import predict
from tests.calibrate.small_jobs import check_predicted, needs_emulator, workload
from tests.predictor.small import small_config

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

LITTLE_ROOM = {"stage3_max_reuse_distance": 20_000, "stage3_max_live_parameters": 40_000, "reduce_bucket_size": 10_000,
               "stage3_prefetch_bucket_size": 9_000, "stage3_param_persistence_threshold": 100, "sub_group_size": 30_000}


def config(stage: int, *offloaded: str, **zero) -> dict:
    return {"bf16": {"enabled": True},
            "zero_optimization": {"stage": stage} | {name: {"device": "cpu"} for name in offloaded} | zero}


@pytest.mark.parametrize("changes, events", [
    ({"deepspeed": config(2, "offload_optimizer", overlap_comm=True, reduce_bucket_size=10_000), "rank": 1,
      "gradient_accumulation_steps": 2, "optim": "adamw_8bit"}, "synchronization"),
    ({"deepspeed": config(2, "offload_optimizer", reduce_scatter=False, round_robin_gradients=True), "rank": 1,
      "recipe": "lora"}, "immediate"),
    ({"deepspeed": config(1, "offload_optimizer", reduce_bucket_size=10_000), "rank": 0,
      "gradient_accumulation_steps": 3}, "immediate"),
    ({"deepspeed": config(3, "offload_optimizer", "offload_param", stage3_allgather_sequential=True, **LITTLE_ROOM),
      "rank": 0, "gradient_accumulation_steps": 2}, "immediate"),
    ({"deepspeed": config(3, "offload_param", overlap_comm=False, **LITTLE_ROOM), "data_parallel_size": 1, "rank": 0},
     "immediate"),
])
def test_a_job_needs_what_is_predicted(tmp_path, changes, events):
    asked = workload(tmp_path, **{"gpu": "h100-80gb", "profile": "none", "data_parallel_size": 2} | changes)
    check_predicted(asked, events)


REDUCTION_BYTES = 4096
"""At most, of what a norm of millions of elements is summed up in, which is not predicted."""


def test_gradients_that_are_larger_than_all_else_need_what_is_predicted(tmp_path):
    (tmp_path / "large.json").write_text(json.dumps(small_config(vocab_size=32_000)))
    asked = workload(tmp_path, model=str(tmp_path / "large.json"), gpu="h100-80gb", profile="none", sequence_length=16,
                     deepspeed=config(1, "offload_optimizer", reduce_bucket_size=10_000), data_parallel_size=2, rank=0,
                     per_device_train_batch_size=1, gradient_accumulation_steps=3)
    record, prediction = measure(asked), predict(asked)
    assert 0 <= record.peak("requested_bytes").bytes - prediction.peak_requested_bytes <= REDUCTION_BYTES
    assert prediction.peak_reserved_bytes == record.peak("reserved_bytes").bytes
