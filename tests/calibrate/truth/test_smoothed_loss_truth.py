"""Label smoothing on the emulated GPU: measured jobs, and Hugging Face's Trainer itself."""

from __future__ import annotations

import json

import pytest

from predictor.jobs import dispatch
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator, workload
from tests.calibrate.trainer import SCALARS_BYTES, ZERO2_CONFIG, train
from tests.predictor.small import small_llama

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

WIDE = {"vocab_size": 4096}
"""So many words that the logits decide the peak."""


@pytest.mark.parametrize("keys", [
    {},
    {"padding": "right", "gradient_accumulation_steps": 2, "gradient_checkpointing": False},
    {"mixed_precision": "bf16", "dtype": "fp32"},
    {"engine": "ddp", "data_parallel_size": 2},
    {"zero_stage": 1, "data_parallel_size": 2, "rank": 1},
    {"zero_stage": 2, "data_parallel_size": 8, "rank": 7},
], ids=["torch", "padded", "autocast", "ddp", "zero1", "zero2"])
def test_a_measured_job_is_predicted(tmp_path, keys):
    (tmp_path / "wide.json").write_text(json.dumps(small_llama(**WIDE)))
    asked = workload(tmp_path, model=str(tmp_path / "wide.json"), gpu="h100-80gb", profile="none", loss="label_smoothing", **keys)
    record, run, simulation = measured_and_predicted(asked)
    assert 0 <= record.peak("requested_bytes").bytes - run.peak < SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes


@pytest.mark.parametrize(("world_size", "engine"), [(None, {}), (8, {"zero_stage": 2, "data_parallel_size": 8, "rank": 7})],
                         ids=["torch", "zero2"])
def test_the_trainer_with_smoothed_labels_is_predicted(tmp_path, world_size, engine):
    found = train(tmp_path, label_smoothing_factor=0.1, deepspeed=ZERO2_CONFIG if engine else None, bf16=bool(engine),
                  world_size=world_size, rank=engine.get("rank", 0))
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", loss="label_smoothing", **engine)
    predicted = dispatch.prepare(asked).run(asked.capacity, asked.rank).peak
    assert 0 <= found.peak_requested_bytes - predicted < SCALARS_BYTES
