"""Files of reports: every format of measurements, and the files that are skipped by name."""

import json
import re
import tracemalloc
from dataclasses import replace

import pytest

from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, Unexplained, to_line
from calibrate.records.record import OutOfMemory
from calibrate.regression import compact, files
from predictor.common.errors import InputError
from predictor.events.events import Moment
from tests.calibrate import small_jobs

KEYS = {"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "h100-80gb"}
JOB = {"model": "llava-1.5-7b", "sequence_length": 1024, "zero_stage": 2, "data_parallel_size": 8, "rank": 7}


def record(rank=0, keys=(), **job):
    made = small_jobs.record(workload=KEYS | dict(keys), rank=rank)
    return replace(made, job=replace(made.job, **job))


def saved(directory, name="measured.json", content=None) -> str:
    path = directory / name
    content = json.dumps(record().to_json()) if content is None else content
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def compact_row(**changes) -> dict:
    return {"group": "paper", "job": JOB, "measured_on": "emulated", "date": "2026-11-21", "rank": 7,
            "software": {"torch": "2.11.0+cu130"}, "seconds": 1.0, "moment": "backward", "requested_bytes": 1000,
            "allocated_bytes": 1024, "reserved_bytes": 2048} | changes


def campaign_row(model="llava-1.5-7b", **changes) -> Row:
    """Of a job that was measured."""
    keys = {"model": model, "sequence_length": 1024}
    return Row(**{"id": Job(keys, "fit", "model").id, "role": "fit", "group": "model", "job": keys,
                  "record": record()} | changes)


def lines(*documents) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


def why(path) -> list[str]:
    return [one.why for one in files.read([path])[1]]


def test_a_record_of_measure_is_a_case(tmp_path):
    path = saved(tmp_path)
    [case], skipped = files.read([path])
    assert skipped == []
    assert case.peaks == {"requested": 3000, "allocated": 3512, "reserved": 7096, "device": None}
    assert (case.moment, case.step, case.completion, case.survived) == ("backward", 2, "immediate", True)
    assert (case.file, case.line, case.date, case.gpu) == (path, 0, "2026-01-01", "h100-80gb")


def test_a_case_had_what_its_device_had(tmp_path):
    [case], _ = files.read([saved(tmp_path)])
    assert case.workload.capacity == 1 << 30  # the device of the record; the table says 79 GiB of an H100


def test_the_device_peak_counts_on_a_device_only(tmp_path):
    made = small_jobs.record(workload=KEYS)
    from calibrate.records.record import MeasuredOn

    device = replace(made.job.device, event_completion=None)
    made = replace(made, job=replace(made.job, measured_on=MeasuredOn.DEVICE, device=device, device_used_bytes=9000))
    [case], _ = files.read([saved(tmp_path, content=json.dumps(made.to_json()))])
    assert case.peaks["device"] == 9000


@pytest.mark.parametrize("measured_on, completion, why", [
    ("device", "immediate", 'event_completion is "immediate", and a real GPU has none: edited, or damaged'),
    ("emulated", "never", 'event_completion: "never" is not one of immediate, launches:N, synchronization')])
def test_a_wrong_completion_of_events_is_no_measurement(measured_on, completion, why, tmp_path):
    made = small_jobs.record(workload=KEYS).to_json()
    made["job"] |= {"measured_on": measured_on, "device": made["job"]["device"] | {"event_completion": completion}}
    with pytest.raises(InputError, match=re.escape(why)):
        files.read([saved(tmp_path, content=json.dumps(made))])


def test_a_job_that_ran_out_of_memory_did_not_survive(tmp_path):
    failure = OutOfMemory("CUDA out of memory", Moment.BACKWARD, 2, None)
    [case], _ = files.read([saved(tmp_path, content=json.dumps(record(out_of_memory=failure).to_json()))])
    assert case.survived is False


def test_a_row_of_a_campaign_is_a_case_with_its_causes(tmp_path):
    item = Unexplained("device_only", "aten::div", "backward", 1, 4, 0)
    row = campaign_row("llava-1.5-7b-2-2", unexplained_items=(item,))
    [case], _ = files.read([saved(tmp_path, "rows.jsonl", to_line(row))])
    assert (case.model, case.group, case.line) == ("llava-1.5-7b-2-2", "model", 1)
    assert [(cause.operator, cause.difference_bytes) for cause in case.causes] == [("aten::div", -4)]


def test_a_compact_row_is_a_case(tmp_path):
    [case], _ = files.read([saved(tmp_path, "rows.jsonl", lines(compact_row()))])
    assert case.peaks == {"requested": 1000, "allocated": 1024, "reserved": 2048, "device": None}
    assert case.workload.capacity_bytes == compact.PLENTY_BYTES
    assert (case.engine, case.workload.rank, case.group) == ("zero2", 7, "paper")


def test_a_compact_row_is_of_the_gpu_that_its_job_names(tmp_path):
    [case], _ = files.read([saved(tmp_path, "rows.jsonl", lines(compact_row(job=JOB | {"gpu": "h200"})))])
    assert (case.gpu, case.workload.gpu) == ("h200", "h200")


def test_a_compact_row_is_written_with_its_version(tmp_path):
    row = compact.row(JOB, {key: value for key, value in compact_row().items() if key not in ("group", "job")})
    assert row["schema_version"] == compact.SCHEMA_VERSION == 1
    [case], _ = files.read([saved(tmp_path, "rows.jsonl", lines(row))])
    assert case.peaks["requested"] == 1000


def test_allocated_bytes_may_be_fewer_than_requested(tmp_path):
    """Blocks that wait for another stream count as requested only."""
    [case], _ = files.read([saved(tmp_path, "rows.jsonl", lines(compact_row(allocated_bytes=512)))])
    assert case.peaks["allocated"] == 512


def test_events_of_a_compact_row_are_when_events_complete(tmp_path):
    row = compact_row(job=JOB | {"events": "synchronization"})
    [case], _ = files.read([saved(tmp_path, "rows.jsonl", lines(row))])
    assert case.completion == "synchronization"


def test_a_model_variant_of_the_compact_rows_is_found(tmp_path):
    [case], _ = files.read([saved(tmp_path, "rows.jsonl", lines(compact_row(job=JOB | {"model": "grouped"})))])
    assert (case.model, case.workload.model) == ("grouped", str(compact.MODELS / "grouped.json"))


def test_a_row_of_verdicts_is_two_cases_without_peaks(tmp_path):
    row = {"job": JOB, "measured_on": "emulated", "predicted_limit_bytes": 4 << 20, "survived_bytes": 4 << 20,
           "died_bytes": 2 << 20}
    survived, died = files.read([saved(tmp_path, "verdicts.jsonl", lines(row))])[0]
    assert (survived.survived, survived.workload.capacity) == (True, 4 << 20)
    assert (died.survived, died.workload.capacity) == (False, 2 << 20)
    assert set(survived.peaks.values()) == {None}


# --- skipped by name --------------------------------------------------------------------------------


def test_a_last_line_that_was_cut_off_is_skipped_by_name(tmp_path):
    path = saved(tmp_path, "rows.jsonl", lines(compact_row()) + json.dumps(compact_row())[:50])
    cases, [skipped] = files.read([path])
    assert len(cases) == 1
    assert (skipped.file, skipped.line, skipped.why) == (
        path, 2, "not valid JSON: the last line was cut off while it was written")


def test_a_damaged_line_in_the_middle_stops_no_other(tmp_path):
    path = saved(tmp_path, "rows.jsonl", lines(compact_row()) + "\xff{\n" + lines(compact_row(job=JOB | {"rank": 0}, rank=0)))
    cases, [skipped] = files.read([path])
    assert (len(cases), skipped.source, skipped.why) == (2, f"{path}:2", "not valid JSON: damaged")


def test_an_older_schema_is_skipped_by_name(tmp_path):
    saved(tmp_path)
    older = saved(tmp_path, "older.json", json.dumps(record().to_json() | {"schema_version": 0}))
    _, [skipped] = files.read([str(tmp_path)])
    assert (skipped.file, skipped.why) == (
        older, "schema_version is 0, and this release reads 1: measure again")


def test_the_same_job_measured_twice_counts_once(tmp_path):
    path = saved(tmp_path, "rows.jsonl", lines(compact_row(), compact_row(requested_bytes=1001)))
    [case], [skipped] = files.read([path])
    assert case.peaks["requested"] == 1000
    assert (skipped.line, skipped.name, skipped.why) == (2, case.id, f"the same job as {path}:1")


@pytest.mark.parametrize("change", [{"rank": 0}, {"software": {"torch": "2.12.0"}},
                                    {"job": JOB | {"events": "synchronization"}}])
def test_another_rank_software_or_completion_is_another_job(tmp_path, change):
    cases, skipped = files.read([saved(tmp_path, "rows.jsonl", lines(compact_row(), compact_row(**change)))])
    assert (len(cases), skipped) == (2, [])


@pytest.mark.parametrize("content, message", [
    ({"groups": [], "cases": [], "skipped": []}, "a report of peakcast report, not a measurement"),
    ({}, "in none of the forms that this release reads: it has no keys"),
    ({"a": 1, "b": 2}, 'in none of the forms that this release reads: it has the keys "a, b"'),
    ([1], "not a mapping: not a measurement of peakcast"),
    (compact_row(requested_bytes="1 GB"), 'requested_bytes must be bytes, not "1 GB": another schema, or damaged'),
    (compact_row(requested_bytes=1e30), "requested_bytes must be bytes, not 1e+30: another schema, or damaged"),
    (compact_row(requested_bytes=(1 << 50) + 1),
     "requested_bytes must be bytes, not 1125899906842625: another schema, or damaged"),
    (compact_row(allocated_bytes=-1024), "allocated_bytes must be bytes, not -1024: another schema, or damaged"),
    (compact_row(requested_bytes=4 << 20), "reserved_bytes, 2,048, are fewer than requested_bytes, 4,194,304: blocks "
                                           "lie in what is reserved: edited, or damaged"),
    ({"job": JOB, "survived_bytes": 4 << 20, "died_bytes": 4 << 20},
     "died_bytes, 4,194,304, are no fewer than survived_bytes, 4,194,304: edited, or damaged"),
    (compact_row(reserved_bytes=1023), "reserved_bytes, 1,023, are fewer than allocated_bytes, 1,024: blocks lie in what "
                                       "is reserved: edited, or damaged"),
    (compact_row(schema_version=2), "schema_version is 2, and this release reads 1: measure again"),
    (compact_row(schema_version=None), "schema_version is missing, and this release reads 1: measure again"),
    (compact_row(software={"torch": 2}), "software must be a mapping to versions, not {'torch': 2}: another schema, or "
                                         "damaged"),
    ({"job": JOB, "survived_bytes": None, "died_bytes": None},
     "nothing was measured: neither where the job survived nor where it died"),
    ({"job": JOB, "survived_bytes": -1, "died_bytes": None},
     "survived_bytes must be bytes, not -1: another schema, or damaged"),
    (compact_row(moment="night"), 'moment must be one of init, forward, backward, optimizer_step, evaluation, prefill, decode, not "night": '
                                  "another schema, or damaged"),
    (compact_row(job={"model": "llava-1.5-7b", "sequence_lenght": 1}),
     'unknown key "sequence_lenght" (did you mean "sequence_length"?)'),
    (compact_row(job=3), "job must be a mapping, not 3: another schema, or damaged"),
])
def test_what_is_no_measurement_says_why(tmp_path, content, message):
    saved(tmp_path)
    saved(tmp_path, "other.json", json.dumps(content))
    assert why(str(tmp_path)) == [message]


def test_a_device_that_was_changed_on_purpose_is_no_measurement_of_its_kind(tmp_path):
    saved(tmp_path)
    made = record()
    made = replace(made, job=replace(made.job, device=replace(made.job.device, injected={"context_bytes": 1})))
    saved(tmp_path, "injected.json", json.dumps(made.to_json()))
    [message] = why(str(tmp_path))
    assert "changed on purpose (injected)" in message


def test_values_of_any_type_are_never_fatal(tmp_path):
    saved(tmp_path)
    for number, value in enumerate([None, [], {}, 1, "x", {"model": []}, [[]]]):
        saved(tmp_path, f"{number}.json", json.dumps(record().to_json() | {"workload": value, "job": value}))
        saved(tmp_path, f"{number}.jsonl", lines(compact_row(job=value, software=value)))
    cases, skipped = files.read([str(tmp_path)])
    assert (len(cases), len(skipped)) == (1, 14)


def test_peaks_of_a_record_that_cannot_be_are_skipped_by_name(tmp_path):
    document = record().to_json()
    document["job"]["moments"][2]["requested_bytes"] = 10**30
    path = saved(tmp_path, content=json.dumps(document))
    with pytest.raises(InputError, match="requested_bytes must be bytes, not 10000"):
        files.read([path])


@pytest.mark.parametrize("name, content", [("empty.jsonl", ""), ("blank.jsonl", "\n \n"), ("empty.json", "")])
def test_an_empty_file_is_skipped_by_name(tmp_path, name, content):
    saved(tmp_path)
    assert why(str(tmp_path)) == []
    saved(tmp_path, name, content)
    assert why(str(tmp_path)) == ["empty: no measurement is in there"]


@pytest.mark.parametrize("name", ["large.json", "large.jsonl"])
def test_no_more_than_the_limit_is_read_of_a_document(tmp_path, monkeypatch, name):
    monkeypatch.setattr(files, "LARGEST_LINE_BYTES", 1 << 20)
    saved(tmp_path)
    with open(tmp_path / name, "wb") as stream:
        stream.truncate(1 << 28)  # holes: it takes no room on the disk
    tracemalloc.start()
    assert why(str(tmp_path)) == ["larger than 1 MiB: this is no measurement"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_line_that_is_too_long_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_LINE_BYTES", 1 << 12)
    path = saved(tmp_path, "rows.jsonl", "1" * (3 << 12) + "\n" + lines(compact_row()))
    [case], [skipped] = files.read([path])
    assert (case.line, skipped.line) == (2, 1)


def test_nothing_readable_at_all_is_bad_input(tmp_path):
    path = saved(tmp_path, content="{")
    with pytest.raises(InputError, match="no measurement that can be read in .*not valid JSON: cut off or damaged"):
        files.read([path])
