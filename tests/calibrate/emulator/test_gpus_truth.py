"""Jobs on an emulated GPU of each compute capability against their predictions: kernels and workspaces depend on it.

V100 is not among them: PyTorch 2.11 has kernels for it only in its build for CUDA 12.6. ``scripts/check.py stacks``
compares jobs on an emulated V100 under older releases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.jobs import dispatch
from predictor.workload.workload import Workload
from tests.calibrate.small_jobs import check_predicted, measured_and_predicted, needs_emulator, workload

pytestmark = needs_emulator
FIRST = {gpu.compute_capability: gpu.name for gpu in reversed(gpus.TABLE) if gpu.compute_capability >= (7, 5)}
"""Of each compute capability for which PyTorch has kernels, the GPU that the table has first."""
OTHERS = [gpu.name for gpu in gpus.TABLE if gpu.compute_capability >= (8, 0) and gpu.name not in FIRST.values()][-3:]
"""GPUs with few multiprocessors, on which some buffers depend."""
LLAVA: dict[str, Any] = {"sequence_length": 200, "per_device_train_batch_size": 3}


def check(asked: Workload) -> None:
    record, run, simulation = measured_and_predicted(asked)
    assert run.peak == record.peak("requested_bytes").bytes
    assert simulation.peak_allocated_bytes == record.peak("allocated_bytes").bytes
    assert simulation.peak_reserved_bytes == record.peak("reserved_bytes").bytes


@pytest.mark.parametrize("gpu", [*FIRST.values(), *OTHERS])
def test_a_gpu_of_each_compute_capability_holds_what_is_predicted(gpu, tmp_path: Path):
    dtype = "bf16" if gpus.find(gpu).compute_capability >= (8, 0) else "fp16"
    check(workload(tmp_path, gpu=gpu, dtype=dtype, profile="none"))


@pytest.mark.parametrize("changes", [
    {"gradient_checkpointing": False, **LLAVA}, {"padding": "right", **LLAVA}, {"attn_implementation": "eager"},
    {"dtype": "fp32", "mixed_precision": "fp16"}, {"dtype": "fp32", "gradient_checkpointing": False},
    {"recipe": "lora"}, {"optim": "adafactor"}, {"engine": "ddp", "data_parallel_size": 2},
    {"model": "vit-base", "sequence_length": None, "gradient_checkpointing": False, "per_device_train_batch_size": 3},
    {"model": "gpt2", "sequence_length": 1000, "per_device_train_batch_size": 4, "gradient_checkpointing": False},
], ids=lambda changes: "-".join(map(str, changes.values())))
def test_a_t4_holds_what_is_predicted(changes, tmp_path: Path):
    check(workload(tmp_path, **{"gpu": "t4", "dtype": "fp16", "profile": "none"} | changes))


@pytest.mark.parametrize("changes", [
    {"zero_stage": 2}, {"zero_stage": 3}, {"deepspeed": {"fp16": {"enabled": True}, "zero_optimization": {"stage": 1}}}],
    ids=["zero2", "zero3", "zero1-fp16"])
def test_a_t4_under_deepspeed_holds_what_is_predicted(changes, tmp_path: Path):
    dtype = {} if "deepspeed" in changes else {"dtype": "fp16"}
    check_predicted(workload(tmp_path, gpu="t4", data_parallel_size=2, rank=1, profile="none", **dtype, **changes),
                    "immediate")


@pytest.mark.parametrize("changes, message", [
    ({}, "dtype bf16: gpu t4 has compute capability 7.5, from 8.0 on it is predicted: give fp16, or fp32"),
    ({"dtype": "fp32", "mixed_precision": "bf16"}, "mixed_precision bf16: gpu t4 "),
    ({"dtype": "fp16", "sdpa_backend": "flash"}, "sdpa_backend flash: gpu t4 .*: leave it out")])
def test_what_gpus_before_ampere_do_in_other_ways_is_refused(changes, message, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        dispatch.prepare(workload(tmp_path, gpu="t4", **changes))
