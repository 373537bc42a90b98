"""NEFTune's noise on the emulated GPU: measured jobs, and Hugging Face's Trainer itself."""

from __future__ import annotations

import pytest

from predictor.jobs import dispatch
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator, workload
from tests.calibrate.trainer import SCALARS_BYTES, ZERO2_CONFIG, train

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]


@pytest.mark.parametrize("keys", [
    {},
    {"padding": "right", "gradient_accumulation_steps": 2, "gradient_checkpointing": False},
    {"mixed_precision": "bf16", "dtype": "fp32"},
    {"recipe": "lora", "lora": {"r": 8}, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    {"recipe": "lora", "lora": {"r": 8}, "gradient_checkpointing": False},
    {"recipe": "lora", "lora": {"r": 8}, "quantization": {"load_in_4bit": True}},
    {"engine": "ddp", "data_parallel_size": 2},
    {"zero_stage": 2, "data_parallel_size": 8, "rank": 7},
    {"zero_stage": 3, "data_parallel_size": 8, "rank": 7},
    {"engine": "fsdp2", "data_parallel_size": 8},
    {"engine": "fsdp1", "data_parallel_size": 8},
    {"per_device_eval_batch_size": 3},
    {"keep_outputs": "next_forward"},
    {"loss": "trl_sft", "dtype": "fp32"},
], ids=["torch", "padded", "autocast", "lora", "lora-kept", "qlora", "ddp", "zero2", "zero3", "fsdp2", "fsdp1", "evaluation", "kept", "trl"])
def test_a_measured_job_is_predicted(tmp_path, keys):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", neftune_noise_alpha=5, **keys)
    record, run, simulation = measured_and_predicted(asked)
    assert 0 <= record.peak("requested_bytes").bytes - run.peak < SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes


@pytest.mark.parametrize(("world_size", "engine"), [(None, {}), (8, {"zero_stage": 2, "data_parallel_size": 8, "rank": 7})],
                         ids=["torch", "zero2"])
def test_the_trainer_with_noise_is_predicted(tmp_path, world_size, engine):
    found = train(tmp_path, neftune_noise_alpha=5, deepspeed=ZERO2_CONFIG if engine else None, bf16=bool(engine),
                  world_size=world_size, rank=engine.get("rank", 0))
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", neftune_noise_alpha=5, **engine)
    predicted = dispatch.prepare(asked).run(asked.capacity, asked.rank).peak
    assert 0 <= found.peak_requested_bytes - predicted < SCALARS_BYTES
