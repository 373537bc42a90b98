"""Predicted segments and verdicts against PyTorch's own allocator in small jobs on the emulated GPU."""

from __future__ import annotations

import pytest

from calibrate.measure.measure import measure
from predictor.answer.predict import predict
from predictor.jobs import dispatch, survival
from predictor.jobs.survival import PAGE_BYTES
from tests.calibrate.small_jobs import needs_emulator, workload

pytestmark = needs_emulator

OVERLAP = {"bf16": {"enabled": True},
           "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 3_000_000}}


def small(directory, **changes):
    """A tiny LLaVA, as the last of two ranks if nothing else is said."""
    return workload(directory, **{"gpu": "h100-80gb", "profile": "none", "data_parallel_size": 2, "rank": 1} | changes)


@pytest.mark.parametrize("changes, events", [
    ({"data_parallel_size": 1, "rank": 0, "engine": "torch"}, "immediate"),
    ({"zero_stage": 2, "gradient_accumulation_steps": 3}, "immediate"),
    ({"deepspeed": OVERLAP}, "immediate"),
    ({"deepspeed": OVERLAP}, "synchronization"),
    ({"zero_stage": 2, "allocator_conf": "expandable_segments:True"}, "immediate"),
])
def test_reserved_memory_is_that_of_the_real_allocator(tmp_path, changes, events):
    asked = small(tmp_path, **changes)
    job = dispatch.prepare(asked)
    simulation = survival.simulate_run(job.run(asked.capacity), job.setup.allocator, completion=events,
                                       total_bytes=asked.capacity)
    measured = measure(asked, events=events).peak("reserved_bytes").bytes
    assert measured == simulation.peak_reserved_bytes


@pytest.mark.parametrize("engine", [{"zero_stage": 1}, {"zero_stage": 2}, {"zero_stage": 3}, {"engine": "ddp"},
                                    {"engine": "fsdp2"}], ids=str)
def test_no_rank_of_real_jobs_has_more_than_the_predicted_worst(tmp_path, engine):
    asked = small(tmp_path, data_parallel_size=3, rank="worst", capacity_bytes=8 << 30, **engine)
    worst, records = predict(asked), [measure(asked.replace(rank=rank)) for rank in range(3)]
    for counter in ("requested", "allocated", "reserved"):
        assert max(record.peak(f"{counter}_bytes").bytes for record in records) == getattr(worst, counter).bytes, counter


def test_a_job_survives_at_its_least_capacity_and_dies_below(tmp_path):
    asked = small(tmp_path, data_parallel_size=1, rank=0, engine="torch")
    job = dispatch.prepare(asked)
    least = job.minimum_capacity() - job.margin.runtime_high
    there, below = (measure(asked.replace(capacity_bytes=least - less)) for less in (0, PAGE_BYTES))
    assert there.job.out_of_memory is None and below.job.out_of_memory is not None
