"""A history with other allocator settings: what the simulation says, PyTorch needs when it runs with these settings."""

import pytest

from calibrate.measure.measure import measure
from predictor.allocator import AllocatorSettings
from predictor.snapshot import read
from predictor.snapshot.what_if import what_if
from tests.calibrate.small_jobs import needs_emulator, workload

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

JOBS = {"plain": {}, "zero-2": {"zero_stage": 2, "data_parallel_size": 8, "rank": 7}}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("recorded, other", [
    (None, "expandable_segments:True"), ("expandable_segments:True", "max_split_size_mb:20"),
    (None, "roundup_power2_divisions:4")])
def test_other_settings_need_what_pytorch_needs_with_them(job, recorded, other, tmp_path):
    path = tmp_path / "history.pickle"
    measure(workload(tmp_path, allocator_conf=recorded, **JOBS[job]), snapshot=str(path))
    real = measure(workload(tmp_path, allocator_conf=other, **JOBS[job])).job.memory_stats
    result = what_if(read(path), 0, AllocatorSettings.parse(other))
    for counter in ("requested_bytes", "allocated_bytes", "reserved_bytes"):
        assert getattr(result, f"peak_{counter}") == real[f"{counter}.all.peak"]
