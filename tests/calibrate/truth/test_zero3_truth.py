"""ZeRO-3 predicted against DeepSpeed's own in small jobs on the emulated GPU."""

from __future__ import annotations

import pytest

from calibrate.measure.measure import measure
from predictor.jobs.survival import PAGE_BYTES
from tests.calibrate.small_jobs import check_predicted, needs_emulator, workload

pytestmark = needs_emulator



def config(**zero) -> dict:
    return {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3} | zero}


LITTLE_ROOM = config(stage3_max_reuse_distance=20_000, stage3_max_live_parameters=40_000, reduce_bucket_size=10_000,
                     stage3_prefetch_bucket_size=9_000, stage3_param_persistence_threshold=100, sub_group_size=30_000)
"""Parameters come and go as in a model of many billions."""


@pytest.mark.parametrize("changes, events", [
    ({"zero_stage": 3, "data_parallel_size": 2, "rank": 0}, "immediate"),
    ({"deepspeed": config(), "data_parallel_size": 8, "rank": 7, "gradient_checkpointing": False,
      "gradient_accumulation_steps": 2}, "immediate"),
    ({"deepspeed": LITTLE_ROOM, "data_parallel_size": 3, "rank": 2}, "synchronization"),
])
def test_a_job_needs_what_is_predicted(tmp_path, changes, events):
    asked = workload(tmp_path, **{"gpu": "h100-80gb", "profile": "none"} | changes)
    check_predicted(asked, events, reserved_off_bytes=PAGE_BYTES)


def test_a_job_with_its_history_recorded_needs_the_same(tmp_path):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", zero_stage=3, data_parallel_size=2, rank=1)
    recorded = measure(asked, snapshot=str(tmp_path / "history.pickle"))
    assert recorded.peak("requested_bytes") == measure(asked).peak("requested_bytes")
