"""4-bit and 8-bit layers on emulated GPUs: transformers, bitsandbytes and peft against the prediction."""

from __future__ import annotations

import json

import pytest

from calibrate.measure.measure import measure
from predictor.answer.predict import predict
from predictor.model import quantization
from predictor.workload.workload import Workload
from tests.calibrate.emulator.test_emulator import run_job
from tests.calibrate.small_jobs import needs_emulator, workload
from tests.predictor.small_models import TEXT

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

LANGUAGE_ONLY = {"load_in_4bit": True, "llm_int8_skip_modules": ["model.vision_tower", "model.multi_modal_projector",
                                                                 "lm_head"]}
EIGHT = {"load_in_8bit": True}
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
    {"quantization": EIGHT, "lora": {"lora_dropout": 0.1, "autocast_adapter_dtype": False},
     "gradient_accumulation_steps": 2, "gradient_checkpointing": False},
    {"quantization": EIGHT | {"prepare": "trl"}, "lora": {"modules_to_save": ["lm_head"], "bias": "all"},
     "gradient_checkpointing_kwargs": {"use_reentrant": True}, "attn_implementation": "eager", "padding": "right"},
    {"quantization": EIGHT | {"llm_int8_threshold": 0}, "engine": "ddp", "data_parallel_size": 4},
    {"quantization": EIGHT, "zero_stage": 2, "data_parallel_size": 4, "rank": 3},
    {"quantization": EIGHT, "padding": "packed"},
    {"quantization": NESTED, "mixed_precision": "bf16"},
    {"quantization": NESTED | {"prepare": "trl"}, "mixed_precision": "bf16", "padding": "right", "engine": "ddp", "data_parallel_size": 4},
    {"quantization": EIGHT, "mixed_precision": "bf16", "gradient_checkpointing": False, "gradient_accumulation_steps": 2},
], ids=["as given", "maxima of 8 bits", "as TRL", "ddp", "zero2", "packed", "8 bits", "8 bits as TRL", "8 bits ddp",
        "8 bits zero2", "8 bits packed", "autocast", "autocast as TRL, ddp", "8 bits autocast"])
def test_a_measured_job_is_predicted(tmp_path, keys):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", sequence_length=160, per_device_train_batch_size=4,
                     **{"lora": {"r": 16}} | keys)
    record, prediction = measure(asked), predict(asked)
    assert prediction.peak_requested_bytes == record.peak("requested_bytes").bytes
    assert prediction.peak_reserved_bytes == record.peak("reserved_bytes").bytes


@pytest.mark.parametrize(("batch", "compute"), [(1, "fp32"), (2, "fp32"), (2, "bf16")])
def test_few_tokens_adapted_embeddings_and_reentrant_checkpoints_are_predicted(tmp_path, batch, compute):
    (tmp_path / "config.json").write_text(json.dumps(TEXT["llama"] | {"tie_word_embeddings": False}))
    asked = Workload(model=str(tmp_path), gpu="h100-80gb", profile="none", recipe="lora", sequence_length=4,
                     per_device_train_batch_size=batch, gradient_checkpointing_kwargs={"use_reentrant": True},
                     quantization={"load_in_4bit": True, "bnb_4bit_compute_dtype": compute},
                     lora={"r": 8, "target_modules": ["embed_tokens", "q_proj"]})
    record, prediction = measure(asked), predict(asked)
    assert prediction.peak_requested_bytes == record.peak("requested_bytes").bytes
    assert prediction.peak_reserved_bytes == record.peak("reserved_bytes").bytes


OUTLIERS = """
import torch
import bitsandbytes


def peak(columns):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.ops.bitsandbytes.int8_mixed_scaled_mm.default(source, rows, weight, maxima, scales, columns, None)
    return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before


found = []
for tokens, outputs, inputs in SHAPES:
    source = torch.empty(tokens, inputs, dtype=torch.bfloat16, device="cuda")
    rows, weight = (torch.empty(size, inputs, dtype=torch.int8, device="cuda") for size in (tokens, outputs))
    maxima, scales = (torch.empty(size, device="cuda") for size in (tokens, outputs))
    for columns in (1, 7, inputs):
        wanted = torch.arange(columns, device="cuda")
        peak(wanted)  # the first makes workspaces
        found.append((tokens, outputs, columns, peak(wanted) - peak(wanted[:0])))
answer(found)
"""


def test_columns_of_outliers_take_no_more_than_is_said_of_them():
    shapes = [(1, 4096, 4096), (8, 14336, 4096), (700, 4096, 14336), (4001, 1024, 4096)]
    for tokens, outputs, columns, more in run_job(f"SHAPES = {shapes}\n" + OUTLIERS):
        assert 0 < more <= columns * quantization.outlier_bytes(tokens, outputs)
