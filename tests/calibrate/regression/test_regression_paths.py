"""Paths of a report: the files that they stand for, and the files that are skipped by name."""

import json
import os

import pytest

from calibrate.regression import files, paths
from predictor.common.errors import InputError
from tests.calibrate.regression.test_regression_files import compact_row, lines, saved, why

CALIBRATION = json.dumps({"schema_version": 1, "coefficients": {}})


def told(*names) -> list[tuple[str, str]]:
    return [(one.file, one.why) for one in files.read(names)[1]]


def test_a_directory_stands_for_its_files(tmp_path):
    (tmp_path / "deeper").mkdir()
    saved(tmp_path / "deeper")
    saved(tmp_path, "rows.jsonl", lines(compact_row()))
    saved(tmp_path, "notes.txt", "no measurement")
    assert [len(found) for found in files.read([str(tmp_path)])] == [2, 0]


def test_the_case_of_a_suffix_does_not_matter(tmp_path):
    assert len(files.read([saved(tmp_path, "ROWS.JSONL", lines(compact_row()))])[0]) == 1


def test_a_file_that_is_named_twice_is_read_once(tmp_path):
    path = saved(tmp_path)
    assert told(path, path, str(tmp_path)) == [(path, "named twice: read once")] * 2


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_to_a_file_that_was_read_is_named(tmp_path, link):
    path, other = saved(tmp_path), str(tmp_path / "other.json")
    link(path, other)
    assert told(path, other) == [(other, f"the same file as {path}: read once")]


def test_a_link_to_nothing_is_named(tmp_path):
    saved(tmp_path)
    link = str(tmp_path / "gone.json")
    os.symlink("nowhere.json", link)
    assert told(str(tmp_path)) == [(link, "cannot be read: a link to nothing")]


def test_a_pipe_is_not_read(tmp_path):
    path, pipe = saved(tmp_path), str(tmp_path / "pipe.jsonl")
    os.mkfifo(pipe)
    assert told(path, pipe) == told(str(tmp_path)) == [(pipe, paths.NOT_REGULAR)]


def test_a_device_is_not_read(tmp_path):
    assert told(saved(tmp_path), "/dev/zero") == [("/dev/zero", paths.NOT_REGULAR)]


def test_another_suffix_is_told(tmp_path):
    path = saved(tmp_path, "rows.txt", lines(compact_row()))
    assert told(saved(tmp_path), path) == [
        (path, "its name must end in .json (one record) or in .jsonl (a row each line)")]


def test_an_empty_name_is_bad_input(tmp_path, monkeypatch):
    saved(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="an empty name: name files or directories of measurements"):
        files.read([""])


def test_a_path_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="no such file or directory"):
        files.read([str(tmp_path / "nothing.json")])


def test_a_directory_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def walk(top, onerror):
        onerror(PermissionError(13, "Permission denied", f"{top}/closed"))
        yield str(top), [], ["measured.json"]

    saved(tmp_path)
    monkeypatch.setattr("os.walk", walk)
    assert told(str(tmp_path)) == [(f"{tmp_path}/closed", "cannot be read: Permission denied")]


# --- calibrations beside measurements ---------------------------------------------------------------


def test_a_calibration_beside_measurements_is_no_mistake(tmp_path):
    saved(tmp_path)
    saved(tmp_path, "profile.json", CALIBRATION)
    assert why(str(tmp_path)) == ["a calibration, not a measurement"]


def test_calibrations_of_a_directory_are_one_line(tmp_path):
    saved(tmp_path)
    (tmp_path / "deeper").mkdir()
    saved(tmp_path, "a.json", CALIBRATION)
    saved(tmp_path / "deeper", "b.json", CALIBRATION)
    assert told(str(tmp_path)) == [(str(tmp_path), "calibrations, not measurements: a.json, deeper/b.json")]


def test_a_calibration_that_was_named_is_told_where_it_belongs(tmp_path):
    assert told(saved(tmp_path), saved(tmp_path, "profile.json", CALIBRATION)) == [
        (str(tmp_path / "profile.json"), "a profile, not a measurement: give it as --profile")]
