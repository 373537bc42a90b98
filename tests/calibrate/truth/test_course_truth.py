"""Courses of varied batches on the emulated H100: every step's counters are those of the simulated course."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.checks import course
from calibrate.checks.course import COMPARED, Job, compared
from tests.calibrate.small_jobs import model_file, needs_emulator
from tests.predictor.small import small_llama

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
STEPS = 6
TEXT = {"count": 40, "seed": 1, "median": 60, "shortest": 20}
IMAGES = TEXT | {"images": 1}
BASE = {"per_device_train_batch_size": 3, "sequence_length": 128, "profile": "none", "steps": STEPS, "samples": TEXT}
JOBS = {
    "llava zero2": {"model": "llava", "zero_stage": 2, "data_parallel_size": 8, "rank": 1, "samples": IMAGES},
    "lora, accumulated": {"recipe": "lora", "gradient_accumulation_steps": 4, "samples": TEXT | {"count": 48}},
    "zero3": {"zero_stage": 3, "data_parallel_size": 4, "rank": 2},
    "fsdp2, expandable": {"engine": "fsdp2", "data_parallel_size": 2, "rank": 0, "conf": "expandable_segments:True"},
    "ddp, script": {"engine": "ddp", "data_parallel_size": 2, "rank": 0, "keep_outputs": "next_forward"},
    "a loader one batch ahead": {"held": 2},
    "incomplete batches": {"samples": TEXT | {"count": 10}, "sampling": {"strategy": "sequential"},
                           "empty_cache_steps": 2},
    "evaluations": {"model": "llava", "zero_stage": 2, "data_parallel_size": 8, "rank": 1, "samples": IMAGES,
                    "evaluation": {"every": 2, "size": 4, "count": 50, "seed": 5}},
    "a batch larger than the dataset": {"samples": TEXT | {"count": 2}},
    "packed": {"padding": "packed", "samples": TEXT | {"count": 10}, "sampling": {"strategy": "sequential"}},
    "packed before": {"padding": "packed", "sequence_length": 256, "per_device_train_batch_size": 2, "recipe": "lora",
                      "samples": TEXT | {"count": 120}, "sampling": {"packing": "bfd"},
                      "evaluation": {"every": 3, "size": 1, "count": 20, "seed": 5}},
    "packed images": {"model": "llava", "zero_stage": 2, "data_parallel_size": 8, "rank": 1, "samples": IMAGES,
                      "padding": "packed"},
    "some text alone": {"model": "llava", "samples": IMAGES | {"pictured": 0.3}, "zero_stage": 2, "rank": 1,
                        "data_parallel_size": 8, "frozen": ["model.multi_modal_projector"],
                        "evaluation": {"every": 2, "size": 2, "count": 30, "seed": 5}},
    "text alone gets images": {"model": "llava", "samples": IMAGES | {"pictured": 0.3}},
    "no images": {"model": "llava", "samples": TEXT, "recipe": "lora"},
    "quantized": {"recipe": "lora", "quantization": {"load_in_4bit": True}},
    "quantized to 8 bits": {"recipe": "lora", "quantization": {"load_in_8bit": True}},
    "evaluations under ddp": {"engine": "ddp", "data_parallel_size": 2, "rank": 1,
                              "evaluation": {"every": 3, "size": 8, "count": 20, "seed": 5}},
}


def model_of(directory: Path, name: str) -> str:
    if name == "llava":
        return model_file(directory)
    (directory / "llama.json").write_text(json.dumps(small_llama()))
    return str(directory / "llama.json")


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
def test_every_step_is_simulated(tmp_path, changes):
    keys = BASE | changes
    keys["model"] = model_of(tmp_path, keys.get("model", "llama"))
    job = Job.of(keys)
    measured, simulated = job.measured(), job.simulated()
    rows = [list(row) for row in zip(*(getattr(simulated.memory, name).tolist() for name in COMPARED))]
    assert len(rows) == STEPS + 1
    assert rows == measured["rows"]
    assert (measured["out_of_memory"], simulated.failure, simulated.unmatched) == (None, None, 0)


def test_an_error_is_at_the_simulated_step(tmp_path):
    keys = BASE | {"model": model_of(tmp_path, "llama"), "samples": TEXT | {"median": 40}, "steps": 12}
    peaks = Job.of(keys).simulated().memory.peak_reserved_bytes
    short = keys | {"capacity_bytes": int(peaks.max()) - (2 << 20)}
    comparison = compared(course._row({"group": "", "job": short}))
    assert comparison.failure and comparison.failure == comparison.measured_failure
    assert comparison.differing == 0


def test_an_evaluation_fails_at_the_simulated_batch(tmp_path):
    keys = BASE | {"model": model_of(tmp_path, "llama"), "evaluation": {"every": 2, "size": 32, "count": 96, "seed": 6}}
    peaks = Job.of(keys).simulated().memory.peak_allocated_bytes
    job = Job.of(keys | {"capacity_bytes": int(peaks.max()) - (2 << 20)})
    measured, failure = job.measured()["out_of_memory"], job.simulated().failure
    assert failure is not None and failure.evaluated
    assert measured == {"step": failure.step, "micro_step": failure.micro_step,
                        "tried_to_allocate_bytes": failure.shortage.tried_to_allocate_bytes}
