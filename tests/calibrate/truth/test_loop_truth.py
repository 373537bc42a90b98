"""Training loops that keep the model's output or the gradients, on the emulated H100 against their predictions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.measure.measure import measure
from predictor.jobs import dispatch, survival
from tests.calibrate.small_jobs import needs_emulator, workload
from tests.predictor.small import small_llama

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
BACKWARD, NEXT_FORWARD = {"keep_outputs": "backward"}, {"keep_outputs": "next_forward"}
BEFORE_FORWARD, BEFORE_BACKWARD = {"zero_grad": "before_forward"}, {"zero_grad": "before_backward"}
LLAMA = {"llama": True}
STORED = {"gradient_checkpointing": False}
TWICE = {"gradient_accumulation_steps": 2}
DDP = {"engine": "ddp", "data_parallel_size": 2, "rank": 1}
VIEWS = DDP | {"ddp": {"gradient_as_bucket_view": True}}
SCALAR_BYTES = 4
"""A number in the optimizer's later steps where not all gradients are bf16, in the reference loop, too."""
JOBS = {
    "function": BACKWARD, "script": NEXT_FORWARD, "script, grads": NEXT_FORWARD | BEFORE_BACKWARD,
    "script, stored": NEXT_FORWARD | STORED, "function, stored, twice": BACKWARD | STORED | TWICE,
    "script, twice": NEXT_FORWARD | TWICE, "script, grads, twice": NEXT_FORWARD | BEFORE_BACKWARD | TWICE,
    "three times": NEXT_FORWARD | BEFORE_FORWARD | {"gradient_accumulation_steps": 4},
    "grads": BEFORE_BACKWARD, "top": BEFORE_FORWARD, "grads, stored, twice": BEFORE_BACKWARD | STORED | TWICE,
    "llama function": LLAMA | BACKWARD | BEFORE_FORWARD, "llama script": LLAMA | NEXT_FORWARD | BEFORE_BACKWARD | STORED,
    "llama script, twice": LLAMA | NEXT_FORWARD | TWICE,
    "padded": NEXT_FORWARD | BEFORE_BACKWARD | {"padding": "right", "attn_implementation": "eager", "recipe": "full"},
    "packed": NEXT_FORWARD | {"padding": "packed", "dtype": "fp32"},
    "reentrant lora": NEXT_FORWARD | {"recipe": "lora", "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "autocast": NEXT_FORWARD | BEFORE_BACKWARD | {"mixed_precision": "bf16"},
    "fp16 autocast": NEXT_FORWARD | BEFORE_BACKWARD | {"mixed_precision": "fp16"},
    "qlora": NEXT_FORWARD | BEFORE_BACKWARD | {"recipe": "lora", "quantization": {"load_in_4bit": True}},
    "evaluation": NEXT_FORWARD | BEFORE_FORWARD | {"per_device_eval_batch_size": 32},
    "ddp": DDP | BACKWARD | TWICE, "ddp script": DDP | NEXT_FORWARD | BEFORE_BACKWARD,
    "ddp script, twice": DDP | NEXT_FORWARD | BEFORE_BACKWARD | TWICE, "ddp top": DDP | BEFORE_FORWARD | STORED,
    "ddp views": VIEWS | NEXT_FORWARD | BEFORE_BACKWARD, "ddp views, twice": VIEWS | BEFORE_BACKWARD | TWICE,
    "ddp views, top": VIEWS | BEFORE_FORWARD | BACKWARD,
}


def asked_of(directory: Path, changes: dict):
    if changes.get("llama"):
        (directory / "llama.json").write_text(json.dumps(small_llama()))
        changes = {key: value for key, value in changes.items() if key != "llama"} | {
            "model": str(directory / "llama.json")}
    return workload(directory, gpu="h100-80gb", profile="none", **changes)


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
def test_a_measured_job_is_predicted(tmp_path: Path, changes):
    asked = asked_of(tmp_path, changes)
    record, job = measure(asked), dispatch.prepare(asked)
    run = job.run(asked.capacity, record.rank)
    simulation = survival.simulate_run(run, job.setup.allocator, completion="immediate", total_bytes=asked.capacity)
    measured = {(row.step, row.moment): row.requested_bytes for row in record.job.moments}
    assert measured.keys() == {(row.step, row.moment) for row in record.predicted.moments}
    for row in record.predicted.moments:
        assert 0 <= measured[row.step, row.moment] - row.requested_bytes <= SCALAR_BYTES, (row.step, row.moment)
    assert simulation.peak_allocated_bytes == record.peak("allocated_bytes").bytes
    assert simulation.peak_reserved_bytes == record.peak("reserved_bytes").bytes


ENGINES = {
    "zero0": {"zero_stage": 0, "data_parallel_size": 4, "rank": 3, **NEXT_FORWARD, **TWICE, "optim": "adamw_torch"},
    "zero1": {"zero_stage": 1, "data_parallel_size": 2, "rank": 1, **BACKWARD},
    "zero1, twice": {"zero_stage": 1, "data_parallel_size": 2, "rank": 0, **NEXT_FORWARD, **TWICE},
    "zero2": {"zero_stage": 2, "data_parallel_size": 8, "rank": 7, **NEXT_FORWARD},
    "zero2, twice": {"zero_stage": 2, "data_parallel_size": 2, "rank": 0, **BACKWARD, **TWICE, **STORED},
    "zero3": {"zero_stage": 3, "data_parallel_size": 4, "rank": 0, **BACKWARD, **STORED},
    "zero3, twice": {"zero_stage": 3, "data_parallel_size": 4, "rank": 0, **NEXT_FORWARD, **TWICE},
    "fsdp2": {"engine": "fsdp2", "data_parallel_size": 2, "rank": 0, **NEXT_FORWARD, **BEFORE_BACKWARD},
    "fsdp2, twice": {"engine": "fsdp2", "data_parallel_size": 4, "rank": 0, **BACKWARD, **BEFORE_FORWARD, **TWICE},
    "fsdp2, stored": {"engine": "fsdp2", "data_parallel_size": 4, "rank": 0, **BEFORE_BACKWARD, **TWICE, **STORED,
                      "fsdp": {"reduce_dtype": "fp32", "sync_each_batch": True}},
}


@pytest.mark.parametrize("changes", ENGINES.values(), ids=ENGINES)
def test_an_engine_holds_what_is_predicted(tmp_path: Path, changes):
    """A vocabulary of 4,096 words, so that the logits decide the peak."""
    (tmp_path / "wide.json").write_text(json.dumps(small_llama(vocab_size=4096)))
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", **changes | {"model": str(tmp_path / "wide.json")})
    record, job = measure(asked), dispatch.prepare(asked)
    run = job.run(asked.capacity, record.rank)
    simulation = survival.simulate_run(run, job.setup.allocator, completion="immediate", total_bytes=asked.capacity)
    assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes
