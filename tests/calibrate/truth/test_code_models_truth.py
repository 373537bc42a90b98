"""Models outside transformers: measured jobs on the emulated GPU beside their predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.workload.workload import Workload
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

OWN = (Path(__file__).parents[1] / "own_model.py")
ZERO2 = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 50_000, "overlap_comm": True}, "bf16": {"enabled": True}}


@pytest.mark.parametrize("function, changes", [
    ("train", {"sequence_length": 101, "per_device_train_batch_size": 3, "images_per_sample": 2, "dtype": "fp32",
               "engine": "ddp", "data_parallel_size": 2}),
    ("pictures", {"per_device_train_batch_size": 4, "mixed_precision": "fp16"}),
    ("pictures", {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 8}),
    ("train", {"sequence_length": 100, "deepspeed": ZERO2, "data_parallel_size": 4, "rank": 3,
               "gradient_accumulation_steps": 2}),
    ("rotary", {"sequence_length": 200, "per_device_train_batch_size": 3}),
    ("rotary", {"sequence_length": 200, "keep_outputs": "next_forward", "zero_grad": "before_backward"}),
    ("masked", {"sequence_length": 200, "per_device_train_batch_size": 3}),
], ids=["ddp-fp32", "mixed-precision", "evaluation", "zero2", "rotary", "keeping", "no-buffer"])
def test_a_measured_job_is_predicted(function, changes):
    asked = Workload(model=f"{OWN}:{function}", gpu="h100-80gb", profile="none", **changes)
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes
