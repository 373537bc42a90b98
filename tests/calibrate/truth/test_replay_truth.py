"""Histories that the real allocator recorded on the emulated GPU: their replay makes the same decisions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.measure.measure import measure
from calibrate.records.record import Record
from predictor.common.errors import InputError
from predictor.snapshot import read
from predictor.snapshot.replay import Replay, replay
from tests.calibrate.small_jobs import ROOT, needs_emulator, workload

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

MIB = 1 << 20
OVERLAP = {"bf16": {"enabled": True},
           "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 100_000}}
JOBS = {
    "zero-2": ({"zero_stage": 2, "data_parallel_size": 8, "rank": 7}, "immediate"),
    "overlap": ({"deepspeed": OVERLAP, "data_parallel_size": 2, "rank": 1}, "synchronization"),
    "out-of-memory": ({"capacity_bytes": 48 * MIB}, "immediate"),
}


@pytest.fixture(scope="module", params=JOBS)
def job(request, tmp_path_factory) -> tuple[Record, Replay]:
    """A measured job, and its history replayed."""
    directory = tmp_path_factory.mktemp("job")
    path = directory / "history.pickle"
    keys, events = JOBS[request.param]
    record = measure(workload(directory, **keys), snapshot=str(path), events=events)
    snapshot = read(path)
    assert (len(set(snapshot.traces[0].stream.tolist())) > 1) == (request.param == "overlap")
    return record, replay(snapshot)


def test_every_decision_of_a_job_is_replayed(job):
    assert job[1].divergence is None
    assert job[1].segments == job[1].recorded.segments and job[1].segments


def test_the_peaks_are_the_ones_that_pytorch_counted(job):
    record, result = job
    for what in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"):
        assert getattr(result, f"peak_{what}") == record.job.memory_stats[f"{what}.all.peak"]


def test_the_number_of_segments_is_the_one_that_pytorch_counted(job):
    record, result = job
    assert len(result.segments) == record.job.memory_stats["segment.all.allocated"]
    assert result.recorded.out_of_memory == record.job.memory_stats["num_ooms"]


def record_random_work(directory: Path, seed: int, conf: str, events: str, capacity: int, *more: str) -> list[Replay]:
    """Twelve histories of random work, replayed."""
    done = subprocess.run(
        [sys.executable, "-m", "calibrate.emulator", "run", "--gpu", "h100-80gb", "--capacity-bytes", str(capacity),
         "--events", events, "--no-integers", "--shadow-real-gpu", "--", sys.executable,
         str(Path(__file__).parents[1] / "allocator_job.py"), str(directory), "12", str(seed), *more],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTORCH_CUDA_ALLOC_CONF": conf}, text=True,
        capture_output=True)
    assert done.returncode == 0, done.stderr
    return [replay(read(path), total_bytes=capacity) for path in sorted(directory.iterdir())]


@pytest.mark.parametrize("conf, events, more", [
    ("", "immediate", ()),
    ("", "launches:5", ()),
    ("", "synchronization", ()),
    ("", "launches:5", ("pools",)),
    ("roundup_power2_divisions:4", "synchronization", ()),
    ("max_split_size_mb:64", "launches:5", ()),
    ("expandable_segments:True", "launches:5", ()),
])
def test_random_work_recorded_from_the_start_or_in_mid_run_is_replayed(conf, events, more, tmp_path):
    replays = record_random_work(tmp_path, 1, conf, events, 3_000_000_000, *more)
    assert [result.divergence for result in replays] == [None] * 12
    assert sum(result.start.reserved_bytes > 0 for result in replays) >= 6
    assert sum(result.recorded.out_of_memory for result in replays) > 0


def test_private_pools_in_expandable_segments_are_refused(tmp_path):
    with pytest.raises(InputError, match="private pools .* in expandable segments"):
        record_random_work(tmp_path, 1, "expandable_segments:True", "immediate", 3_000_000_000, "pools")


EMPTY_CACHE = """
import sys, torch
torch.cuda.memory._record_memory_history()
x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
del x
torch.cuda.empty_cache()
y = torch.empty(95 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.memory._dump_snapshot(sys.argv[1])
"""


def test_an_emptied_cache_before_an_oversize_block_is_replayed(tmp_path):
    path = tmp_path / "history.pickle"
    subprocess.run(
        [sys.executable, "-m", "calibrate.emulator", "run", "--gpu", "h100-80gb", "--", sys.executable, "-c",
         EMPTY_CACHE, str(path)], cwd=ROOT, check=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32"})
    result = replay(read(path))
    assert result.divergence is None and result.segments == (100 * MIB, 96 * MIB)
