"""QLoRA on the emulated H100: transformers, bitsandbytes and peft themselves against the prediction."""

from __future__ import annotations

import pytest

from calibrate.measure import measure
from predictor import pipeline
from tests.calibrate.small_jobs import needs_emulator, workload

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
], ids=["as given", "maxima of 8 bits", "as TRL", "ddp", "zero2"])
def test_a_measured_job_is_predicted(tmp_path, keys):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", sequence_length=160, per_device_train_batch_size=4,
                     **{"lora": {"r": 16}} | keys)
    record, prediction = measure(asked), pipeline.predict(asked)
    assert prediction.peak_requested.bytes == pytest.approx(record.peak("requested_bytes").bytes, abs=SCALARS_BYTES)
    assert prediction.peak_reserved.bytes == record.peak("reserved_bytes").bytes
