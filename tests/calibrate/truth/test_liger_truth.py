"""Liger's kernels on the emulated H100 against their predictions: measured jobs and Hugging Face's Trainer."""

from __future__ import annotations

import json

import pytest

from calibrate.measure.measure import measure
from predictor.answer.predict import predict
from predictor.jobs import dispatch
from predictor.workload.workload import Workload
from tests.calibrate.small_jobs import needs_emulator, workload
from tests.calibrate.trainer import SCALARS_BYTES, train

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
pytest.importorskip("liger_kernel")
TEXT_MODEL = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 3, "num_attention_heads": 8,
              "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 32_000, "max_position_embeddings": 512,
              "dtype": "bfloat16"}


@pytest.mark.parametrize("changes", [
    {"recipe": "full", "gradient_checkpointing": False},
    {"recipe": "pretrain", "padding": "packed", "zero_stage": 2, "data_parallel_size": 8, "rank": 7},
    {"lora": {"r": 4}, "per_device_train_batch_size": 1, "zero_stage": 3, "data_parallel_size": 2},
], ids=["full", "packed-zero2", "lora-zero3"])
def test_a_measured_job_is_predicted(tmp_path, changes):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", use_liger_kernel=True, **changes)
    record, prediction = measure(asked), predict(asked)
    assert 0 <= record.peak("requested_bytes").bytes - prediction.peak_requested_bytes < SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == prediction.peak_reserved_bytes


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
def test_a_measured_language_model_is_predicted(tmp_path, model_type):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TEXT_MODEL | {"model_type": model_type}))
    asked = Workload(model=str(path), recipe="full", gpu="h100-80gb", profile="none", use_liger_kernel=True, engine="torch",
                     per_device_train_batch_size=3, sequence_length=96, padding="right", gradient_checkpointing=False)
    record, prediction = measure(asked), predict(asked)
    assert 0 <= record.peak("requested_bytes").bytes - prediction.peak_requested_bytes < SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == prediction.peak_reserved_bytes


def test_the_trainer_s_own_switch_is_predicted(tmp_path):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", use_liger_kernel=True)
    found = train(tmp_path, use_liger_kernel=True)
    predicted = dispatch.prepare(asked).run(asked.capacity).peak
    assert 0 < found.peak_requested_bytes - predicted < SCALARS_BYTES
