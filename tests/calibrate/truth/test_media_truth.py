"""Audio, video and mixture-of-experts models on the emulated H100 against their predictions."""

from __future__ import annotations

import json

import pytest

from predictor.workload.workload import Workload
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator
from tests.predictor.small_models import EXPERTS, IMAGE_TEXT, MEDIA

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

SCALARS_BYTES = 128
"""What a model keeps from one step to the next in a few numbers is counted once."""
JOBS = {
    "whisper": {"sequence_length": 65, "per_device_train_batch_size": 3},
    "qwen2_audio": {"sequence_length": 65, "images_per_sample": 2},
    "llava_next_video": {"sequence_length": 65, "per_device_train_batch_size": 2, "video_frames": 4},
    "qwen2_5_vl": {"sequence_length": 301, "video_frames": 4, "image_size": "280x364"},
    "mixtral": {"sequence_length": 65, "per_device_train_batch_size": 2},
}

OF_TEXT = {
    "llava_next": {"zero_stage": 3, "data_parallel_size": 4},
    "qwen2_5_vl": {"zero_stage": 1, "data_parallel_size": 4},
    "gemma3": {"recipe": "lora"},
    "idefics3": {"engine": "fsdp2", "data_parallel_size": 2},
    "qwen2_audio": {"zero_stage": 2, "data_parallel_size": 2},
}
"""Models that take images or audio, trained on text alone."""


@pytest.mark.parametrize("name", OF_TEXT)
def test_text_alone_is_predicted(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps((MEDIA | IMAGE_TEXT)[name]))
    asked = Workload(model=str(tmp_path), gpu="h100-80gb", profile="none", images_per_sample=0, sequence_length=65,
                     per_device_train_batch_size=2, **OF_TEXT[name])
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes


@pytest.mark.parametrize("name", JOBS)
def test_a_model_is_predicted(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps((MEDIA | {"mixtral": EXPERTS})[name]))
    asked = Workload(model=str(tmp_path), gpu="h100-80gb", profile="none", **JOBS[name])
    record, run, simulation = measured_and_predicted(asked)
    assert 0 <= record.peak("requested_bytes").bytes - run.peak <= SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes
