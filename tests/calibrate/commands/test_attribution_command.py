"""``peakcast explain --measured`` on a small job of the emulated GPU, and on records that cannot be explained."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.attribution import Outcome
from calibrate.attribution.measurement import attribute_record
from calibrate.records.record import Record, read, to_plain
from predictor.cli import main
from predictor.engine.zero_scalars import GLOBAL_NORM
from tests.calibrate import small_jobs
from tests.calibrate.small_jobs import needs_emulator


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """The record of the last of two ranks under ZeRO-2, its memory history beside it."""
    directory = tmp_path_factory.mktemp("attribution")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAKCAST_CACHE", str(tmp_path_factory.mktemp("cache")))
        path = directory / "record.json"
        words = small_jobs.words(directory, "--zero-stage", "2", "--data-parallel-size", "2", "--rank", "1",
                                 "--snapshot", str(directory / "history.pickle"), "--json", "-o", str(path))
        assert main(words) == 0
        yield path


@pytest.fixture(scope="module")
def explained(measured, tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("explained") / "explained.json"
    assert main(["explain", "--measured", str(measured), "--json", "-o", str(path)]) == 0
    return json.loads(path.read_text())


@needs_emulator
def test_every_predicted_allocation_of_a_real_job_came_with_its_size(measured):
    attribution = attribute_record(read(measured), measured)
    count = attribution.count()
    assert (count[Outcome.MATCHED] > 1000, count[Outcome.OTHER_SIZE]) == (True, 0)
    missing = [attribution.predicted.operator[fate.predicted] for fate in attribution.outcomes()
               if fate.outcome is Outcome.NEVER_CAME]
    assert missing == [GLOBAL_NORM]  # DeepSpeed keeps the norm of the first step; we allocate a second scalar for it


@needs_emulator
def test_what_only_the_device_made_is_small_numbers_and_partial_sums(explained):
    peak = explained["measured_peak_requested_bytes"]
    assert all(extra["bytes"] < 0.001 * peak for extra in explained["extras"])


@needs_emulator
def test_the_unexplained_bytes_are_named_one_by_one(explained):
    gap = explained["predicted_peak_requested_bytes"] - explained["measured_peak_requested_bytes"]
    at_peak = explained["at_peak"]
    assert explained["difference_bytes"] == gap
    assert sum(item["difference_bytes"] for item in at_peak["items"]) + at_peak["elsewhere_bytes"] == gap


@needs_emulator
def test_the_peaks_are_those_of_the_record(measured, explained):
    record = read(measured)
    found = {(row["step"], row["moment"]): row["measured_requested_bytes"] for row in explained["moments"]}
    assert found == {(row.step, row.moment.value): row.requested_bytes for row in record.job.moments}


@needs_emulator
def test_the_text_shows_both_sides(measured, capsys):
    assert main(["explain", "--measured", str(measured)]) == 0
    text = capsys.readouterr().out
    assert all(words in text for words in ("Measured peak", "predicted", "optimizer_step", "as predicted",
                                           "What differs in the whole job", "allocations recorded"))


@needs_emulator
def test_a_record_that_moved_finds_its_history_beside_it(measured, tmp_path):
    record = replace(read(measured), snapshot="elsewhere/history.pickle")
    (tmp_path / "moved.json").write_text(json.dumps(to_plain(record)))
    shutil.copy(measured.parent / "history.pickle", tmp_path)
    assert main(["explain", "--measured", str(tmp_path / "moved.json"), "--json", "-o", str(tmp_path / "out")]) == 0


@needs_emulator
def test_the_history_of_another_job_is_one_clear_line(measured, tmp_path, capsys):
    record = read(measured)
    rows = tuple(replace(row, requested_bytes=row.requested_bytes + 4) for row in record.job.moments)
    path = written(tmp_path, replace(record, job=replace(record.job, moments=rows)))
    assert main(["explain", "--measured", path]) == 2
    assert is_one_clear_line(capsys.readouterr().err, "history.pickle", "another job")


def written(directory: Path, record: Record) -> str:
    path = directory / "record.json"
    path.write_text(json.dumps(to_plain(record)))
    return str(path)


def is_one_clear_line(text: str, *expected: str) -> bool:
    return len(text.strip().splitlines()) == 1 and all(word in text for word in expected)


def test_a_record_without_a_history_is_one_clear_line(tmp_path, capsys):
    assert main(["explain", "--measured", written(tmp_path, small_jobs.record())]) == 2
    assert is_one_clear_line(capsys.readouterr().err, "record.json", "--snapshot FILE")


@needs_emulator
def test_a_key_that_no_workload_has_is_told_with_the_file(measured, capsys):
    path = measured.with_name("edited.json")
    document = json.loads(measured.read_text())
    path.write_text(json.dumps(document | {"workload": {"bogus": 1}}))
    assert main(["explain", "--measured", str(path)]) == 2
    assert is_one_clear_line(capsys.readouterr().err, f'{path}: workload: unknown key "bogus"')


def test_a_history_that_is_gone_is_one_clear_line(tmp_path, capsys):
    path = written(tmp_path, small_jobs.record(snapshot="gone/history.pickle"))
    assert main(["explain", "--measured", path]) == 2
    assert is_one_clear_line(capsys.readouterr().err, "gone/history.pickle", "beside the record")


def test_a_history_that_is_no_snapshot_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "history.pickle").write_text("nothing of the kind")
    path = written(tmp_path, small_jobs.record(snapshot="history.pickle"))
    assert main(["explain", "--measured", path]) == 2
    assert is_one_clear_line(capsys.readouterr().err, "history.pickle")


@pytest.mark.parametrize(("words", "expected"), [
    (["llava-1.5-7b"], "leave out MODEL"),
    (["--zero-stage", "2"], "leave out --zero-stage"),
    (["--picture", "x.svg"], "leave out --picture"),
])
def test_a_measured_job_is_not_described_again(tmp_path, capsys, words, expected):
    assert main(["explain", "--measured", written(tmp_path, small_jobs.record()), *words]) == 2
    assert is_one_clear_line(capsys.readouterr().err, expected)
