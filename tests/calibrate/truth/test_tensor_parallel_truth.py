"""Tensor parallelism on the emulated H100 against its prediction: tiny models, transformers' own sharding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.measure.measure import measure
from predictor.jobs import dispatch, survival
from tests.calibrate.small_jobs import needs_emulator, workload
from tests.predictor.small import small_llama

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
LLAMA, TIED = small_llama(num_key_value_heads=2), small_llama(tie_word_embeddings=True)
JOBS = {
    "alone": (None, {"tensor_parallel_size": 4, "rank": 3, "gradient_accumulation_steps": 2}),
    "grouped heads": (LLAMA, {"tensor_parallel_size": 2, "rank": 0, "gradient_checkpointing": False,
                              "padding": "right"}),
    "tied": (TIED, {"tensor_parallel_size": 2, "rank": 1, "mixed_precision": "bf16", "max_grad_norm": 0.0}),
    "with data parallelism": (None, {"engine": "ddp", "data_parallel_size": 2, "tensor_parallel_size": 4, "rank": 7}),
}


@pytest.mark.parametrize(("document", "changes"), JOBS.values(), ids=JOBS)
def test_every_moment_needs_what_is_predicted(tmp_path: Path, document, changes):
    if document:
        (tmp_path / "llama.json").write_text(json.dumps(document))
        changes = changes | {"model": str(tmp_path / "llama.json")}
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", **changes)
    record, job = measure(asked), dispatch.prepare(asked)
    run = job.run(asked.capacity, record.rank)
    simulation = survival.simulate_run(run, job.setup.allocator, completion="immediate", total_bytes=asked.capacity)
    assert {(row.step, row.moment): row.requested_bytes for row in record.predicted.moments} \
        == {(row.step, row.moment): row.requested_bytes for row in record.job.moments}
    assert simulation.peak_allocated_bytes == record.peak("allocated_bytes").bytes
    assert simulation.peak_reserved_bytes == record.peak("reserved_bytes").bytes
