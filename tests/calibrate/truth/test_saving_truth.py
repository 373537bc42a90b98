"""Saving a checkpoint never takes more GPU memory than a step: real engines on the emulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from predictor.jobs import dispatch
from tests.calibrate.small_jobs import ROOT, needs_emulator, workload

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

GATHERS = {"bf16": {"enabled": True},
           "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True,
                                 "stage3_param_persistence_threshold": 0}}
SCALARS_BYTES = 4096
"""Loss scale, counters and flags."""


def saved(directory, **changes) -> dict[str, int]:
    """Bytes at most, beyond what is held, by call; and the training peak."""
    asked = workload(directory, images_per_sample=1, rank=0, **changes)
    command = [sys.executable, "-m", "calibrate.emulator", "run", "--gpu", "h100-80gb", "--", sys.executable, "-m",
               "tests.calibrate.saving_job"]
    output = subprocess.run(command, cwd=ROOT, input=json.dumps(asked.resolved()), capture_output=True, text=True)
    assert output.returncode == 0, output.stderr[-2000:]
    return json.loads(output.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("changes", [
    {}, {"zero_stage": 1, "data_parallel_size": 4}, {"zero_stage": 2, "data_parallel_size": 4},
], ids=["torch", "zero1", "zero2"])
def test_saving_takes_nothing_of_the_gpu(tmp_path, changes):
    found = saved(tmp_path, **changes)
    assert found.get("save_checkpoint", found.get("state_dict")) <= SCALARS_BYTES


def test_zero_3_gathers_the_weights_it_saves_parameter_by_parameter(tmp_path):
    found = saved(tmp_path, deepspeed=GATHERS, data_parallel_size=4)
    job = dispatch.prepare(workload(tmp_path, images_per_sample=1, deepspeed=GATHERS, data_parallel_size=4))
    largest = max(tensor.bytes for tensor in job.formula.facts.parameters)
    assert found["save_checkpoint"] <= SCALARS_BYTES
    assert largest <= found["save_16bit_model"] <= largest + SCALARS_BYTES
    assert found["held"] + found["save_16bit_model"] < found["training"]
