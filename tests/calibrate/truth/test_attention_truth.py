"""Packed batches and flash-attn on the emulated H100 against their predictions.

flash-attn itself cannot be had without a GPU. Its stand-in here allocates on the device what flash_attn/ and
csrc/flash_attn/flash_api.cpp of release 2.8 do, so that all of transformers around it is real.
"""

from __future__ import annotations

import json
import os

import pytest

from calibrate.checks import course
from calibrate.measure.measure import measure
from predictor.answer.predict import predict
from predictor.common.errors import InputError
from tests.calibrate.small_jobs import needs_emulator, workload
from tests.predictor.small import small_llama

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
PACKAGE = '''
import torch
from predictor.trace.flash_attention import _LIBRARY, flash_attn_func, flash_attn_varlen_func

__version__ = "2.8.3"
flash_attn_with_kvcache = None
ON_GPU = {"dtype": torch.float32, "device": "cuda"}


def forward(q, k, v, dropout):
    out = torch.empty_like(q)
    sums = torch.empty((q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else (q.shape[1], q.shape[0]), **ON_GPU)
    return out, sums, torch.empty(2, dtype=torch.int64, device="cuda")


def backward(q, k, sequences):
    heads, width = q.shape[-2], -(-q.shape[-1] // 32) * 32
    rows = (q.shape[0], -(-q.shape[1] // 128) * 128) if q.dim() == 4 else (1, q.shape[0] + 128 * sequences)
    d, dq = torch.empty(rows[0], heads, rows[1], **ON_GPU), torch.empty(*rows, heads, width, **ON_GPU)
    if heads != k.shape[-2]:
        dk, dv = torch.empty_like(q), torch.empty_like(q)
        del dv, dk
    del dq, d


_LIBRARY.impl("forward", forward, "CUDA")
_LIBRARY.impl("backward", backward, "CUDA")
'''


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """One directory for all jobs that find it, which are forked from one process then."""
    directory = tmp_path_factory.mktemp("packages")
    for name, text in {
        "flash_attn/__init__.py": PACKAGE,
        "flash_attn/bert_padding.py": "from predictor.trace.flash_attention import pad_input\nunpad_input = None\n",
        "flash_attn-2.8.3.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n",
        "flash_attn-2.8.3.dist-info/top_level.txt": "flash_attn\n",
    }.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return directory


@pytest.fixture
def flash_attn(packages, monkeypatch):
    """Jobs find the stand-in as an installed package."""
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)


def check(asked) -> None:
    record, prediction = measure(asked), predict(asked)
    assert record.peak("requested_bytes").bytes == prediction.peak_requested_bytes
    assert record.peak("reserved_bytes").bytes == prediction.peak_reserved_bytes


@pytest.mark.parametrize("changes", [
    {"sdpa_backend": "efficient", "gradient_checkpointing": False},
    {"attn_implementation": "eager", "zero_stage": 2, "data_parallel_size": 8, "rank": 7},
], ids=["efficient", "eager-zero2"])
def test_a_packed_job_is_predicted(tmp_path, changes):
    check(workload(tmp_path, gpu="h100-80gb", profile="none", padding="packed", **changes))


@pytest.mark.parametrize("changes", [
    {"gradient_checkpointing": False},
    {"keep_outputs": "next_forward", "zero_grad": "before_backward"},
    {"padding": "right", "recipe": "full"},
    {"padding": "packed", "per_device_train_batch_size": 3, "zero_stage": 3, "data_parallel_size": 2},
    {"zero_stage": 3, "offload": "all", "data_parallel_size": 2, "gradient_accumulation_steps": 2},
    {"padding": "right", "zero_stage": 2, "offload": "optimizer", "data_parallel_size": 2},
    {"mixed_precision": "bf16"},
    {"mixed_precision": "bf16", "gradient_checkpointing": False, "padding": "right", "engine": "ddp",
     "data_parallel_size": 2},
    {"dtype": "bf16", "mixed_precision": "bf16", "recipe": "lora"},
    {"per_device_eval_batch_size": 4, "padding": "right"},
    {"padding": "packed", "recipe": "lora", "sequence_length": 160, "per_device_train_batch_size": 4, "quantization": {
        "load_in_4bit": True, "bnb_4bit_compute_dtype": "bf16", "prepare": "trl",
        "llm_int8_skip_modules": ["model.vision_tower", "model.multi_modal_projector", "lm_head"]}},
    {"recipe": "lora", "sequence_length": 160, "per_device_train_batch_size": 4, "mixed_precision": "bf16", "quantization": {
        "load_in_4bit": True, "bnb_4bit_compute_dtype": "bf16",
        "llm_int8_skip_modules": ["model.vision_tower", "model.multi_modal_projector", "lm_head"]}},
], ids=["whole", "kept", "padded", "packed-zero3", "zero3-offload", "zero2-offload", "autocast",
        "autocast-padded-ddp", "autocast-lora", "evaluation", "packed-4bit",
        "autocast-4bit"])
def test_transformers_around_flash_attn_is_predicted(tmp_path, flash_attn, changes):
    check(workload(tmp_path, gpu="h100-80gb", profile="none", attn_implementation="flash_attention_2", **changes))


def test_a_course_of_packed_rows_for_flash_attn_is_simulated(tmp_path, flash_attn):
    (tmp_path / "llama.json").write_text(json.dumps(small_llama()))
    job = course.Job.of({"model": str(tmp_path / "llama.json"), "padding": "packed", "profile": "none", "steps": 4,
                         "attn_implementation": "flash_attention_2", "per_device_train_batch_size": 3,
                         "sequence_length": 128, "samples": {"count": 40, "seed": 1, "median": 60, "shortest": 20}})
    memory = job.simulated().memory
    rows = zip(*(getattr(memory, name).tolist() for name in course.COMPARED))
    assert list(map(list, rows)) == job.measured()["rows"]


def test_nothing_is_measured_without_the_package(tmp_path):
    with pytest.raises(InputError, match="FlashAttention2 .* the package .* doesn't seem to be installed"):
        measure(workload(tmp_path, attn_implementation="flash_attention_2"))
