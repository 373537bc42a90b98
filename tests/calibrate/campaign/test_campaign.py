"""Running a campaign: rows that are kept, jobs that run again, and jobs that fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path

import pytest

from calibrate.attribution import AtPeak, Extra
from calibrate.campaign import measured_job, rows, run
from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, Workspace, opened, read
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.records.record import MeasuredOn, Peak, Predicted
from predictor import snapshot
from predictor.common.errors import InputError
from predictor.events.events import Moment
from predictor.snapshot.replay import replay
from tests.calibrate import small_jobs
from tests.calibrate.small_jobs import needs_emulator

pytestmark = pytest.mark.usefixtures("importing_tests")

JOBS = [Job({"model": "small", "sequence_length": number}, "fit", "shape") for number in range(1, 7)]
ONE = run.Limits(workers=1)


def measured(job: Job, log: Path | None = None, bad: tuple[int, ...] = (), skips: tuple[int, ...] = ()) -> Row:
    """Stands for a measurement: notes that it ran, and fails or dies where it is told to."""
    number = job.keys["sequence_length"]
    if log:
        with open(log, "a") as stream:
            stream.write(f"{number}\n")
    for numbers, why in ((bad, "it did not like the number"), (skips, rows.SKIPPED + "needs 2 bytes")):
        if number in numbers:
            return Row(job.id, job.role, job.group, dict(job.keys), failed=why)
    if number == 99:
        os._exit(3)
    if number == 5:
        time.sleep(0.05)
    return row(job)


def row(job: Job, **changes) -> Row:
    return Row(**{"id": job.id, "role": job.role, "group": job.group, "job": dict(job.keys),
                  "record": small_jobs.record(), "workspaces": (Workspace("aten::mm", "forward", 10, 20, 3),),
                  "unexplained_bytes": 12} | changes)


def campaign(path: Path, jobs=JOBS, limits=ONE, **how) -> int:
    with opened(str(path)) as store:
        return run.run(jobs, partial(measured, **how), store, limits)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "rows.jsonl"


def test_a_row_comes_back_as_it_was(file):
    with opened(str(file)) as store:
        store.add(row(JOBS[0]))
    assert read(file) == [row(JOBS[0])]


def test_a_row_from_before_extras_said_whether_they_make_a_buffer_larger_is_read(file):
    line = rows.to_line(row(JOBS[0]))
    file.write_bytes(line.replace(b',"grows":false', b""))
    assert file.read_bytes() != line and read(file) == [row(JOBS[0])]


def test_extras_that_make_a_buffer_larger_and_buffers_of_their_own_are_counted_apart():
    class Found:
        def extras(self):
            return [Extra("aten::mm", "", Moment.FORWARD, 1, 20, grows, 0, 10, False) for grows in (True, False, True)]

        def at_peak(self):
            return AtPeak(1, Moment.FORWARD, "", "", 0, 0, 0, 0, 0, ())

    assert measured_job.explained(row(JOBS[0]), Found()).workspaces == (
        Workspace("aten::mm", "forward", 10, 20, 1, grows=False), Workspace("aten::mm", "forward", 10, 20, 2, grows=True))


def test_workers_do_not_change_what_is_read(file, tmp_path):
    campaign(file, limits=run.Limits(workers=3))
    campaign(other := tmp_path / "other.jsonl")
    assert read(file) == read(other) and len(read(file)) == len(JOBS)


def test_what_is_there_is_not_run_again(file, tmp_path):
    campaign(file, JOBS[:4])
    campaign(file, log=tmp_path / "log")
    assert (tmp_path / "log").read_text().split() == ["5", "6"]


@pytest.mark.parametrize("cut", [1, 40])
def test_a_torn_last_line_is_run_again_and_the_result_is_the_same(file, tmp_path, cut):
    campaign(file)
    whole = read(file)
    file.write_bytes(file.read_bytes()[:-cut])
    assert len(read(file)) == len(JOBS) - 1
    campaign(file, log=tmp_path / "log")
    assert read(file) == whole and len((tmp_path / "log").read_text().split()) == 1


def test_a_kill_between_two_jobs_loses_nothing(file):
    with opened(str(file)) as store, pytest.raises(KeyboardInterrupt):
        run.run(JOBS, measured, store, ONE, done=lambda row: interrupt(len(store.rows) == 3))
    assert len(read(file)) == 3
    campaign(file)
    assert [found.id for found in read(file)] == sorted(job.id for job in JOBS)


def interrupt(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


def test_a_failed_job_is_a_row_and_the_others_go_on(file):
    campaign(file, bad=(2,))
    assert [found.job["sequence_length"] for found in read(file) if found.failed] == [2]
    assert len(read(file)) == len(JOBS)


def test_a_worker_that_dies_is_a_failed_job(file):
    campaign(file, [Job({"sequence_length": 99}, "fit", "shape"), *JOBS[:2]])
    assert [found.failed for found in read(file) if found.failed] == [
        "the process that measured it ended with exit code 3"]
    assert len(read(file)) == 3


class Deadly:
    """Ends the worker that receives it, before it reads a job."""

    def __reduce__(self):
        return os._exit, (4,)


def test_a_worker_that_dies_before_it_reads_its_job_is_a_failed_job(file):
    with opened(str(file)) as store:
        run.run(JOBS[:2], Deadly(), store, ONE)
    assert {found.failed for found in read(file)} == {"the process that measured it ended with exit code 4"}


DEAF = """
import signal, sys
left = [int(sys.argv[1])]
def hear(*_):
    left[0] -= 1
    if left[0] < 0:
        sys.exit(7)
signal.signal(signal.SIGTERM, hear)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(("lost", "code"), [(1, 7), (99, -signal.SIGKILL)])
def test_a_worker_that_loses_a_request_to_end_is_asked_again_and_then_killed(monkeypatch, lost, code):
    monkeypatch.setattr(run, "REQUEST_SECONDS", 0.2)
    process = subprocess.Popen([sys.executable, "-c", DEAF, str(lost)], stdout=subprocess.PIPE)
    process.stdout.readline()
    run._stop((Pipe()[0], process))
    assert process.returncode == code


def test_failed_jobs_run_again_when_asked_to(file):
    campaign(file, bad=(4,))
    with opened(str(file)) as store:
        store.forget_failed()
        run.run(JOBS, measured, store, ONE)
    assert not [found for found in read(file) if found.failed]


def test_jobs_that_all_fail_stop_the_campaign(file):
    with pytest.raises(InputError, match="the first 3 jobs failed, .*did not like the number .*--retry-failed"):
        campaign(file, bad=(1, 2, 3, 4, 5, 6))


def test_jobs_that_do_not_fit_stop_nothing(file):
    campaign(file, skips=(1, 2, 3, 4))
    assert [found.skipped for found in sorted(read(file), key=lambda row: row.job["sequence_length"])] == 4 * [True] + 2 * [False]


def test_no_job_begins_after_the_time_limit(file):
    assert campaign(file, limits=run.Limits(1, seconds=0.0)) == len(JOBS)
    assert not file.exists()


def test_two_campaigns_do_not_write_one_file(file):
    with opened(str(file)) as store:
        store.begin()
        with pytest.raises(InputError, match="another calibration is writing it"), opened(str(file)):
            pass


def test_of_two_campaigns_that_found_no_file_the_second_to_write_stops(file):
    with opened(str(file)) as store, opened(str(file)) as other:
        store.begin()
        with pytest.raises(InputError, match="another calibration made it meanwhile"):
            other.begin()


def test_a_torn_last_line_stays_until_a_campaign_begins(file):
    campaign(file)
    torn = file.read_bytes()[:-1]
    file.write_bytes(torn)
    with opened(str(file)) as store:
        assert file.read_bytes() == torn
        store.begin()
        assert file.read_bytes() == torn[:torn.rindex(b"\n") + 1]


def test_a_directory_that_is_missing_is_told_at_once(tmp_path):
    with pytest.raises(InputError, match="its directory is missing or not writable"), \
            opened(str(tmp_path / "no" / "p.jsonl")):
        pass


@pytest.mark.parametrize("text, message", [
    ("{\n", ", line 1: not valid JSON"),
    ("[]\n", ", line 1: not a mapping"),
    ('{"id": "a"}\n', ', line 1: the key "role" is missing'),
    ("my thesis, without an end", ""),
])
def test_a_file_that_holds_no_rows_is_refused_and_left_as_it_was(file, text, message):
    file.write_text(text)
    with pytest.raises(InputError) as error, opened(str(file)):
        pass
    assert str(error.value) == f"{file}{message}: this is no file of measurements: name another with --measurements"
    assert file.read_text() == text


def test_something_that_is_no_file_is_refused():
    with pytest.raises(InputError, match="/dev/null: is not a regular file"), opened("/dev/null"):
        pass


@pytest.mark.parametrize("damage, message", [
    (lambda line: line[:40], "not valid JSON"),
    (lambda line: line.replace(b'"role":"fit"', b'"role":"banana"'),
     'role: must be one of fit, holdout, validation, not "banana"'),
    (lambda line: line.replace(b'"sequence_length":2', b'"sequence_length":7'),
     f'the id "{JOBS[1].id}" is not of its job'),
    (lambda line: re.sub(rb'"reserved_bytes":\d+', b'"reserved_bytes":0', line),
     "the largest reserved_bytes is not above 0"),
])
def test_a_damaged_line_among_rows_is_named_with_how_to_go_on(file, damage, message):
    first, second, third = (rows.to_line(row(job)) for job in JOBS[:3])
    damaged = damage(second.rstrip())
    assert damaged != second.rstrip()
    file.write_bytes(first + damaged + b"\n" + third)
    with pytest.raises(InputError) as error:
        read(file)
    assert str(error.value) == (f"{file}, line 2: {message}: delete that line, and the same command measures its job "
                                "again")


def test_a_record_of_another_schema_version_is_refused_by_name(file):
    file.write_bytes(rows.to_line(row(JOBS[0], record=small_jobs.record(schema_version=0))))
    with pytest.raises(InputError, match="line 1: the record's schema_version is 0, and this release has 1: name "
                                         "another file with --measurements, and measure anew"):
        read(file)


def test_a_job_that_cannot_fit_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(measured_job, "measure", None)
    job = Job({"model": "llava-1.5-7b", "sequence_length": 1024, "per_device_train_batch_size": 16, "zero_stage": 2},
              "fit", "shape")
    assert measured_job.row_of(job, MeasuringDevice("a100-40gb", MeasuredOn.EMULATED)).failed.startswith(rows.SKIPPED + "needs ")


def test_a_mistake_in_a_job_is_its_rows(tmp_path):
    job = Job({"model": "nowhere", "sequence_length": 1024}, "fit", "shape")
    assert "no such directory" in measured_job.row_of(job, MeasuringDevice("h100-80gb", MeasuredOn.EMULATED)).failed


@needs_emulator
def test_a_job_of_a_small_model_is_explained_to_the_byte(tmp_path):
    keys = {"model": small_jobs.model_file(tmp_path), "sequence_length": 64, "per_device_train_batch_size": 2}
    found = measured_job.row_of(Job(keys, "fit", "shape"), MeasuringDevice("h100-80gb", MeasuredOn.EMULATED))
    assert found.failed is None and found.unexplained_bytes == 0
    assert found.record.workload["model"] == keys["model"] and found.record.snapshot is None


@needs_emulator
def test_a_history_is_kept_under_the_jobs_id_and_replays(tmp_path):
    job = Job({"model": small_jobs.model_file(tmp_path), "sequence_length": 64}, "fit", "shape")
    found = measured_job.row_of(job, MeasuringDevice("h100-80gb", MeasuredOn.EMULATED, snapshots=str(tmp_path / "kept")))
    assert found.record.snapshot == f"{job.id}.pickle.gz"
    assert replay(snapshot.read(tmp_path / "kept" / found.record.snapshot)).agrees
    earlier = replace(found, unexplained_bytes=None, record=replace(found.record, peakcast_version="0.1.0"))
    assert measured_job.explained_again(earlier, tmp_path / "kept") == found


def test_a_job_whose_history_was_not_kept_cannot_be_explained_again(tmp_path):
    row = Row("7", "fit", "shape", {}, small_jobs.record(predicted=Predicted(Peak(1, Moment.FORWARD, 0), ()),
                                                         not_predicted=None))
    with pytest.raises(InputError, match="job 7 was measured without --snapshots"):
        measured_job.explained_again(row, tmp_path)
