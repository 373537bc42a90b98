"""QLoRA on the emulated H100: transformers, bitsandbytes and peft themselves against the prediction."""

from __future__ import annotations

import json

import pytest

from calibrate.measure import measure
from predictor import pipeline
from predictor.workload import Workload
from tests.calibrate.small_jobs import needs_emulator, workload
from tests.predictor.small_models import TEXT

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

SCALARS_BYTES = 64
"""What the optimizer's scalars take is not predicted one by one."""
LANGUAGE_ONLY = {"load_in_4bit": True, "llm_int8_skip_modules": ["model.vision_tower", "model.multi_modal_projector",
                                                                 "lm_head"]}
NESTED = LANGUAGE_ONLY | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
                          "bnb_4bit_compute_dtype": "bf16"}


@pytest.mark.parametrize("keys", [
    {"quantization": LANGUAGE_ONLY, "gradient_checkpointing": False},
    {"quantization": NESTED, "lora": {"lora_dropout": 0.1, "autocast_adapter_dtype": False},
     "gradient_accumulation_steps": 2, "optim": "paged_adamw_8bit"},
    {"quantization": NESTED | {"prepare": "trl"}, "lora": {"modules_to_save": ["lm_head"], "bias": "all"}},
    {"quantization": NESTED, "engine": "ddp", "data_parallel_size": 4},
    {"quantization": NESTED, "zero_stage": 2, "data_parallel_size": 4, "rank": 3},
    {"quantization": NESTED, "padding": "packed"},
], ids=["as given", "maxima of 8 bits", "as TRL", "ddp", "zero2", "packed"])
def test_a_measured_job_is_predicted(tmp_path, keys):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", sequence_length=160, per_device_train_batch_size=4,
                     **{"lora": {"r": 16}} | keys)
    record, prediction = measure(asked), pipeline.predict(asked)
    assert prediction.peak_requested.bytes == pytest.approx(record.peak("requested_bytes").bytes, abs=SCALARS_BYTES)
    assert prediction.peak_reserved.bytes == record.peak("reserved_bytes").bytes


@pytest.mark.parametrize("batch", [1, 2])
def test_few_tokens_adapted_embeddings_and_reentrant_checkpoints_are_predicted(tmp_path, batch):
    (tmp_path / "config.json").write_text(json.dumps(TEXT["llama"] | {"tie_word_embeddings": False}))
    asked = Workload(model=str(tmp_path), gpu="h100-80gb", profile="none", recipe="lora", sequence_length=4,
                     per_device_train_batch_size=batch, gradient_checkpointing_kwargs={"use_reentrant": True},
                     quantization={"load_in_4bit": True},
                     lora={"r": 8, "target_modules": ["embed_tokens", "q_proj"]})
    record, prediction = measure(asked), pipeline.predict(asked)
    assert prediction.peak_requested.bytes == pytest.approx(record.peak("requested_bytes").bytes, abs=SCALARS_BYTES)
    assert prediction.peak_reserved.bytes == record.peak("reserved_bytes").bytes
