"""Calls of ``generate`` against the real ones on emulated GPUs: each moment of each call, to the byte."""

from __future__ import annotations

import json

import pytest

from calibrate.measure.measure import measure
from predictor.answer.predict import predict
from predictor.jobs import dispatch, survival
from predictor.workload.workload import Workload
from tests.calibrate.small_jobs import needs_emulator
from tests.predictor.generating import LLAVA, MISTRAL, TALK
from tests.predictor.jobs.test_inference import TURNS
from tests.predictor.outside import outside_bytes
from tests.predictor.small_models import IMAGE_TEXT, TEXT

WIDE = TEXT["llama"] | {"hidden_size": 512, "intermediate_size": 1408}
LANGUAGE_ONLY = {"llm_int8_skip_modules": ["model.vision_tower", "model.multi_modal_projector", "lm_head"]}
NESTED = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
          "bnb_4bit_compute_dtype": "bf16"}
POSITIONS_BYTES = {"qwen2_5_vl": 32}
"""What a model keeps of its positions from one turn to a later one, a few integers, is not followed."""


@needs_emulator
@pytest.mark.usefixtures("formula_cache")
@pytest.mark.parametrize(("batch", "share"), [(1, 34 << 20), (16, 80 << 20)])
def test_a_conversation_survives_the_turns_that_are_said_to_fit_and_dies_in_the_next(tmp_path, batch, share):
    (tmp_path / "config.json").write_text(json.dumps(TEXT["llama"]))
    asked = Workload(model=str(tmp_path), mode="inference", gpu="h100-80gb", profile="none", conversation=TALK,
                     per_device_eval_batch_size=batch, capacity_bytes=share + outside_bytes())
    most = predict(asked, maximum_load=True).inference.most_turns
    assert most > 4

    def out_of_memory(turns: int):
        return measure(asked.replace(conversation=TALK[:1] + TALK[1:] * (turns - 1), capacity_bytes=share)).job.out_of_memory

    assert out_of_memory(most) is None
    assert out_of_memory(most + 1).step == most + 1


@needs_emulator
@pytest.mark.usefixtures("formula_cache")
@pytest.mark.parametrize(("document", "keys"), [
    (TEXT["llama"], {"sequence_length": 50, "per_device_eval_batch_size": 3}),
    (TEXT["llama"], {"sequence_length": 2001, "gpu": "a100-80gb"}),
    (LLAVA, {"sequence_length": 50, "images_per_sample": 2, "cache_implementation": "static", "max_cache_len": 150}),
    (LLAVA, {"conversation": TURNS, "per_device_eval_batch_size": 2}),
    (IMAGE_TEXT["qwen2_5_vl"], {"conversation": TURNS, "image_size": 56}),
    (MISTRAL, {"sequence_length": 50, "dtype": "fp16"}),
    (TEXT["llama"], {"sequence_length": 50, "quantization": {"load_in_4bit": True}, "attn_implementation": "eager"}),
    (WIDE, {"sequence_length": 20, "per_device_eval_batch_size": 7, "dtype": "fp16", "gpu": "a100-80gb",
            "quantization": NESTED}),
    (LLAVA, {"conversation": TURNS, "per_device_eval_batch_size": 2, "quantization": NESTED | LANGUAGE_ONLY}),
    (LLAVA, {"sequence_length": 50, "images_per_sample": 2, "cache_implementation": "static", "dtype": "fp16",
             "quantization": {"load_in_8bit": True}}),
    (TEXT["llama"], {"sequence_length": 2001, "quantization": {"load_in_8bit": True, "llm_int8_threshold": 0}}),
    (IMAGE_TEXT["qwen2_5_vl"], {"conversation": TURNS, "image_size": 56, "quantization": {"load_in_8bit": True}}),
], ids=["dynamic", "flash", "static", "conversation", "qwen-conversation", "window", "4-bits", "4-bits-few-rows",
        "4-bits-conversation", "8-bits-static", "8-bits", "8-bits-conversation"])
def test_a_measured_job_is_predicted(tmp_path, document, keys):
    (tmp_path / "config.json").write_text(json.dumps(document))
    asked = Workload(**{"model": str(tmp_path), "mode": "inference", "gpu": "h100-80gb", "profile": "none"} | keys)
    record, job = measure(asked), dispatch.prepare(asked)
    found = survival.simulate_run(job.run(asked.capacity), job.setup.allocator, total_bytes=asked.capacity)
    assert [(row.step, row.moment) for row in record.job.moments] == [
        (row.step, row.moment) for row in record.predicted.moments]
    for measured, predicted in zip(record.job.moments, record.predicted.moments):
        off = measured.requested_bytes - predicted.requested_bytes
        assert 0 <= off <= POSITIONS_BYTES.get(document["model_type"], 0)
    assert record.peak("allocated_bytes").bytes == found.peak_allocated_bytes
    assert record.peak("reserved_bytes").bytes == found.peak_reserved_bytes
