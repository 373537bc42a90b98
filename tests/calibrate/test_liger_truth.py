"""Liger's kernels on the emulated H100 against their predictions: measured jobs and Hugging Face's Trainer."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from calibrate.dryrun import dryrun
from calibrate.measure import measure
from predictor import pipeline
from tests.calibrate.small_jobs import BATCH, SEQUENCE, needs_emulator, workload
from tests.predictor.small import small_config

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
pytest.importorskip("liger_kernel")

SCALARS_BYTES = 64
"""DeepSpeed's norm and overflow flags, and what the Trainer logs, are not predicted."""


@pytest.mark.parametrize("changes", [
    {"recipe": "full", "gradient_checkpointing": False},
    {"recipe": "pretrain", "padding": "packed", "zero_stage": 2, "data_parallel_size": 8, "rank": 7},
    {"lora": {"r": 4}, "per_device_train_batch_size": 1, "zero_stage": 3, "data_parallel_size": 2},
], ids=["full", "packed-zero2", "lora-zero3"])
def test_a_measured_job_is_predicted(tmp_path, changes):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", use_liger_kernel=True, **changes)
    record, prediction = measure(asked), pipeline.predict(asked)
    assert 0 <= record.peak("requested_bytes").bytes - prediction.peak_requested.bytes < SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == prediction.peak_reserved.bytes


def test_the_trainer_s_own_switch_is_predicted(tmp_path):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", use_liger_kernel=True)
    (tmp_path / "model.json").write_text(json.dumps(small_config()))
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(f"""
        import json, torch
        from transformers import AutoConfig, LlavaForConditionalGeneration, Trainer, TrainingArguments
        document = json.load(open({str(tmp_path / "model.json")!r}))
        config = AutoConfig.for_model(document.pop("model_type"), **document)
        model = LlavaForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
        model.model.vision_tower.requires_grad_(False)
        ids = torch.full(({SEQUENCE},), 1)
        ids[1:5] = config.image_token_id
        labels = torch.where(ids == config.image_token_id, -100, ids)
        sample = {{"input_ids": ids, "labels": labels, "pixel_values": torch.zeros(3, 28, 28, dtype=torch.bfloat16)}}
        arguments = TrainingArguments(
            output_dir={str(tmp_path)!r}, per_device_train_batch_size={BATCH}, max_steps=3, report_to=[],
            save_strategy="no", gradient_checkpointing=True, optim="adamw_torch_fused", logging_steps=1,
            gradient_checkpointing_kwargs={{"use_reentrant": False}}, remove_unused_columns=False, bf16=False,
            use_liger_kernel=True)
        Trainer(model=model, args=arguments, train_dataset=[sample] * 64).train()
    """))
    found = dryrun([sys.executable, str(script)], output=subprocess.DEVNULL)
    assert (found.exit_code, found.optimizer_steps) == (0, 3)
    predicted = pipeline.prepare(asked).run(asked.capacity).peak
    assert 0 < found.peak_requested_bytes - predicted < SCALARS_BYTES
