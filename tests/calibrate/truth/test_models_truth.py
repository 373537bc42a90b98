"""Models of every type on the emulated H100 against their predictions."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from calibrate.measure.measure import measure
from predictor.workload.workload import Workload
from tests.calibrate.small_jobs import ROOT, needs_emulator
from tests.predictor.small_models import ALL, LATER

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

SCALARS_BYTES = 128
"""What a model keeps from one step to the next in a few numbers is counted once."""
JOBS = [
    ("llama", {"sequence_length": 65, "zero_stage": 2, "data_parallel_size": 4, "rank": 3}),
    ("gpt2", {"sequence_length": 65, "per_device_train_batch_size": 3, "recipe": "lora"}),
    ("bert", {"sequence_length": 48, "per_device_train_batch_size": 3, "padding": "right", "recipe": "lora"}),
    ("t5", {"sequence_length": 50, "per_device_train_batch_size": 2}),
    ("resnet", {"per_device_train_batch_size": 3, "image_size": 65, "gradient_checkpointing": False}),
    ("mobilenet_v2", {"per_device_train_batch_size": 2, "gradient_checkpointing": False}),
    ("qwen2_5_vl", {"sequence_length": 99, "per_device_train_batch_size": 2, "image_size": "140x84"}),
    ("llava_next", {"sequence_length": 99, "image_size": "40x70", "images_per_sample": 2}),
    ("idefics3", {"sequence_length": 99, "image_size": 40, "recipe": "lora"}),
    ("qwen2_5_vl", {"sequence_length": 99, "per_device_train_batch_size": 3, "image_size": "140x84,56,84x252"}),
    ("llava_next", {"sequence_length": 99, "image_size": "40x70,28", "images_per_sample": 3}),
    ("idefics3", {"sequence_length": 131, "image_size": "40,56x28", "per_device_train_batch_size": 2}),
    ("pixtral", {"sequence_length": 99, "image_size": "40x28,56", "per_device_train_batch_size": 2}),
    ("gemma3", {"sequence_length": 99, "per_device_train_batch_size": 2, "recipe": "pretrain"}),
    ("gemma4", {"sequence_length": 131, "per_device_train_batch_size": 2, "image_size": "200x500"}),
    ("llama4", {"sequence_length": 131, "per_device_train_batch_size": 2, "image_size": "56x112", "recipe": "full"}),
    ("qwen3_5", {"sequence_length": 131, "per_device_train_batch_size": 2, "image_size": "64x128", "recipe": "full"}),
    ("janus", {"sequence_length": 99, "per_device_train_batch_size": 2, "image_size": 56, "recipe": "lora"}),
]


@pytest.mark.parametrize("name, keys", JOBS)
def test_a_model_is_predicted(tmp_path, name, keys):
    (tmp_path / "config.json").write_text(json.dumps((ALL | LATER)[name]))
    asked = Workload(model=str(tmp_path), gpu="h100-80gb", profile="none", **keys)
    record = measure(asked)
    (tmp_path / "job.json").write_text(json.dumps(asked.resolved()))
    command = [sys.executable, "-m", "predictor.cli", "predict", "--workload", str(tmp_path / "job.json"), "--json"]
    said = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout)
    assert 0 <= record.peak("requested_bytes").bytes - said["peak_requested_bytes"] <= SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == said["peak_reserved_bytes"]
