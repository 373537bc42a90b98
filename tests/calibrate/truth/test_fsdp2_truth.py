"""FSDP2 on the emulated H100 against its prediction: a tiny model, PyTorch's own ``fully_shard``."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.measure.measure import measure
from predictor.jobs import dispatch, survival
from tests.calibrate.small_jobs import needs_emulator, workload

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
BASE = {"engine": "fsdp2", "gpu": "h100-80gb", "profile": "none", "per_device_train_batch_size": 1}
MIXED = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
JOBS = {
    "uneven": {"data_parallel_size": 7, "rank": 6, "optim": "adamw_torch"},
    "accumulates": {"data_parallel_size": 2, "fsdp": MIXED, "gradient_accumulation_steps": 3},
    "synchronises": {"data_parallel_size": 8, "gradient_accumulation_steps": 2,
                     "fsdp": {"sync_each_batch": True, "reduce_dtype": "fp32"}},
    "keeps": {"data_parallel_size": 8, "recipe": "lora", "fsdp": {"reshard_after_forward": False}},
    "accelerate": {"data_parallel_size": 8, "fsdp": {"wrap": "accelerate"}, "gradient_checkpointing": False},
    "fp32": {"data_parallel_size": 4, "dtype": "fp32", "recipe": "lora"},
    "packed, Liger": {"data_parallel_size": 4, "padding": "packed", "use_liger_kernel": True},
    "alone": {"data_parallel_size": 1, "fsdp": MIXED},
}


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
def test_a_job_needs_what_is_predicted(tmp_path: Path, changes):
    asked = workload(tmp_path, **BASE | changes)
    job, record = dispatch.prepare(asked), measure(asked)
    run = job.run(asked.capacity, record.rank)
    simulation = survival.simulate_run(run, job.setup.allocator, completion="immediate", total_bytes=asked.capacity)
    peaks = [record.peak(f"{counter}_bytes").bytes for counter in ("requested", "allocated", "reserved")]
    assert peaks == [run.peak, simulation.peak_allocated_bytes, simulation.peak_reserved_bytes]


def test_how_late_events_complete_does_not_matter(tmp_path: Path):
    asked = workload(tmp_path, **BASE, data_parallel_size=2)
    assert measure(asked).job.moments == measure(asked, events="synchronization").job.moments
