"""A campaign under torchrun: the rows that are kept of all ranks, the jobs that run again, and its end."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.campaign import torchrun
from calibrate.campaign.design import Job
from calibrate.campaign.rows import SKIPPED, Row, opened, read
from calibrate.campaign.run import FAILURES
from predictor.common.errors import InputError
from tests.calibrate import small_jobs
from tests.calibrate.launched_campaign import alone
from tests.calibrate.small_jobs import ROOT, needs_emulator

RANKS = 4
JOBS = [Job({"model": "small", "sequence_length": number, "data_parallel_size": 1}, "fit", "shape")
        for number in range(1, 6)]


def measured(job: Job, **changes) -> Row:
    return Row(job.id, job.role, job.group, dict(job.keys), **{"record": small_jobs.record()} | changes)


def broken(job: Job) -> Row:
    return measured(job, record=None, failed="no GPU")


def kept(**failures: Row) -> list[Row]:
    """Of four ranks, of which some failed."""
    return torchrun.kept(JOBS[0], [failures.get(f"rank_{rank}", measured(JOBS[0])) for rank in range(RANKS)])


def campaign(file: Path, row_of=measured, over=lambda: False, done=lambda row: None) -> int:
    with opened(str(file)) as store:
        return torchrun.run(JOBS, row_of, store, over, done)


def test_the_first_and_the_last_ranks_rows_are_kept_each_as_a_job_of_its_own():
    assert [(row.id, row.job["rank"], row.failed) for row in kept()] == [
        (torchrun.of_rank(JOBS[0], rank).id, rank, None) for rank in (0, RANKS - 1)]


def test_of_a_single_rank_there_is_one_row():
    assert len(torchrun.kept(JOBS[0], [measured(JOBS[0])])) == 1


def test_a_failure_of_a_rank_between_is_one_of_the_job():
    assert {(row.failed, row.broken) for row in kept(rank_2=broken(JOBS[0]))} == {("rank 2: no GPU", True)}


def test_a_rank_that_ran_out_of_memory_leaves_the_others_records():
    ran_out = measured(JOBS[0], failed="out of memory in forward of step 1")
    assert {(row.failed, row.broken) for row in kept(rank_1=ran_out)} == {
        ("rank 1: out of memory in forward of step 1", False)}


def test_a_rank_that_ended_says_more_than_one_that_waited_for_it_in_vain():
    waited = measured(JOBS[0], failed="out of memory in init of step 0")
    assert {row.failed for row in kept(rank_0=waited, rank_3=broken(JOBS[0]))} == {"rank 3: no GPU"}


def test_a_job_that_would_not_fit_is_skipped_on_all_ranks():
    skipped = measured(JOBS[0], record=None, failed=SKIPPED + "needs 2 bytes")
    assert all(row.skipped for row in kept(**{f"rank_{rank}": skipped for rank in range(RANKS)}))


def test_jobs_are_counted_once_and_those_of_other_degrees_stay():
    two = replace(JOBS[0], keys={**JOBS[0].keys, "data_parallel_size": 2, "rank": 0})
    rows = [*torchrun.kept(job := replace(JOBS[0], keys={**JOBS[0].keys, "data_parallel_size": RANKS}),
                           [measured(job)] * RANKS), measured(two)]
    assert [row.job["rank"] for row in torchrun.once_a_job(rows, RANKS)] == [RANKS - 1, 0]


def test_what_is_there_is_not_run_again(monkeypatch, tmp_path):
    alone(monkeypatch)
    ran: list[Row] = []
    assert campaign(tmp_path / "rows.jsonl", over=lambda: len(ran) == 2, done=ran.append) == len(JOBS) - 2
    campaign(tmp_path / "rows.jsonl", done=ran.append)
    assert [row.id for row in ran] == [torchrun.of_rank(job, 0).id for job in JOBS]


def test_jobs_that_all_fail_stop_the_campaign(monkeypatch, tmp_path):
    alone(monkeypatch)
    with pytest.raises(InputError, match=f"the first {FAILURES} jobs failed, .*rank 0: no GPU .*--retry-failed"):
        campaign(tmp_path / "rows.jsonl", broken)
    assert len(read(tmp_path / "rows.jsonl")) == FAILURES


@needs_emulator
def test_two_ranks_measure_a_job_together(tmp_path):
    model, file = small_jobs.model_file(tmp_path), tmp_path / "rows.jsonl"
    job = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(ROOT / "tests/calibrate/launched_campaign.py"), model, str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=150)
    assert job.returncode == 0, job.stderr[-3000:]
    assert sorted((row.failed, row.job["rank"], row.record.rank, row.record.job.process_group) for row in read(file)) == [
        (None, rank, rank, "launched") for rank in (0, 1)]
