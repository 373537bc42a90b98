"""DeepSpeed's AutoTP on the emulated H100 against its prediction: tiny models, DeepSpeed's own layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor.jobs import dispatch
from tests.calibrate import trainer
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator, workload
from tests.predictor.small import small_llama

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
BIASED = small_llama(num_key_value_heads=2, attention_bias=True, mlp_bias=True)
NORMED = small_llama() | {"model_type": "qwen3", "head_dim": 16}
JOBS = {
    "ZeRO-1, one replica": (None, {"zero_stage": 1, "tensor_parallel_size": 4, "rank": 3,
                                   "gradient_accumulation_steps": 2}),
    "ZeRO-2, gathered head, biases": (BIASED, {"zero_stage": 2, "data_parallel_size": 2, "tensor_parallel_size": 2,
                                               "rank": 0, "gradient_checkpointing": False, "padding": "right"}),
    "ZeRO-1, norms of heads": (NORMED, {"zero_stage": 1, "data_parallel_size": 2, "tensor_parallel_size": 2, "rank": 3,
                                        "per_device_eval_batch_size": 4}),
    "ZeRO-0": (None, {"zero_stage": 0, "data_parallel_size": 2, "tensor_parallel_size": 4, "rank": 7}),
}


@pytest.mark.parametrize(("document", "changes"), JOBS.values(), ids=JOBS)
def test_every_moment_needs_what_is_predicted(tmp_path: Path, document, changes):
    if document:
        (tmp_path / "model.json").write_text(json.dumps(document))
        changes = changes | {"model": str(tmp_path / "model.json")}
    record, _, simulation = measured_and_predicted(workload(tmp_path, gpu="h100-80gb", profile="none", **changes))
    predicted = {(row.step, row.moment): row.requested_bytes for row in record.predicted.moments}
    assert all(row.requested_bytes == predicted[row.step, row.moment] for row in record.job.moments)
    assert record.peak("allocated_bytes").bytes == simulation.peak_allocated_bytes
    assert simulation.peak_reserved_bytes == record.peak("reserved_bytes").bytes


def test_the_trainer_needs_what_is_predicted_of_its_config(tmp_path: Path):
    config = trainer.ZERO2_CONFIG | {"tensor_parallel": {"autotp_size": 2}}
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", deepspeed=config, dtype="bf16", data_parallel_size=2,
                     rank=3)
    found = trainer.train(tmp_path, deepspeed=config, bf16=True, world_size=4, rank=3)
    assert 0 < found.peak_requested_bytes - dispatch.prepare(asked).run(asked.capacity, 3).peak < trainer.SCALARS_BYTES
