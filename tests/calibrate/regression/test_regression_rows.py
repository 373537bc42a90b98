"""Rows of a campaign as reports read them: repeats, older schemas, edited rows."""

import json
from dataclasses import replace

import pytest

from calibrate.campaign.design import Job
from calibrate.campaign.rows import to_line
from calibrate.records.record import OutOfMemory
from calibrate.regression import files
from predictor.events.events import Moment
from tests.calibrate.regression.test_regression_files import campaign_row, record, saved, why

ROW = campaign_row()
LINE = to_line(ROW)
FAILED = to_line(campaign_row(record=None, failed="it ended early"))


def read(tmp_path, content: bytes):
    return files.read([saved(tmp_path, "rows.jsonl", content)])


def test_of_two_rows_with_an_id_the_last_counts(tmp_path):
    [case], [skipped] = read(tmp_path, LINE + LINE)
    assert (case.line, skipped.line, skipped.name, skipped.why) == (2, 1, ROW.id, "measured again: line 2 counts")


def test_a_job_that_failed_and_was_measured_again_is_measured(tmp_path):
    [case], [skipped] = read(tmp_path, FAILED + LINE)
    assert (case.line, skipped.line, skipped.why) == (2, 1, "measured again: line 2 counts")


@pytest.mark.parametrize("repeat, said", [
    (LINE[:200], "not valid JSON: the last line was cut off while it was written (line 1 counts)"),
    (LINE[:200] + b"\n", "not valid JSON: damaged (line 1 counts)"),
    (FAILED, "nothing was measured: it ended early (line 1 counts)"),
])
def test_a_repeat_that_is_of_no_use_leaves_the_row_before(tmp_path, repeat, said):
    [case], [skipped] = read(tmp_path, LINE + repeat)
    assert (case.line, skipped.line, skipped.name, skipped.why) == (1, 2, ROW.id, said)


def test_a_repeat_that_ran_out_of_memory_counts(tmp_path):
    failure = OutOfMemory("CUDA out of memory", Moment.BACKWARD, 2, None)
    died = replace(ROW, record=record(out_of_memory=failure), failed="out of memory in backward of step 2")
    [case], [skipped] = read(tmp_path, LINE + to_line(died))
    assert (case.survived, skipped.line) == (False, 1)


def test_a_job_that_was_not_measured_says_why(tmp_path):
    saved(tmp_path)
    saved(tmp_path, "rows.jsonl", FAILED)
    assert why(str(tmp_path)) == ["nothing was measured: it ended early"]


@pytest.mark.parametrize("version", [0, 2, None])
def test_a_record_of_another_schema_is_skipped_by_name(tmp_path, version):
    saved(tmp_path)
    document = json.loads(LINE)
    document["record"]["schema_version"] = version
    path = saved(tmp_path, "rows.jsonl", json.dumps(document))
    [_], [skipped] = files.read([str(tmp_path)])
    assert (skipped.source, skipped.name, skipped.why) == (
        f"{path}:1", ROW.id, f"schema_version is {'missing' if version is None else version}, and this release reads 1: measure again")


def test_an_id_that_is_not_its_jobs_is_skipped_by_name(tmp_path):
    saved(tmp_path)
    edited = ROW.job | {"sequence_length": 2048}
    saved(tmp_path, "rows.jsonl", to_line(replace(ROW, job=edited)))
    own = Job(edited, "fit", "model").id
    assert why(str(tmp_path)) == [f'its id is "{ROW.id}", and its job\'s is "{own}": edited, or damaged']
