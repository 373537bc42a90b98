"""Untrusted files: they are read within bounds or rejected in one line, and nothing waits forever."""

import os
import resource
import subprocess
import threading
import time

import pytest

from predictor import cli
from predictor.common.errors import InputError
from predictor.common.files import LARGEST_FILE_BYTES, open_bounded, parse_json, read_mapping, read_text, write_together
from tests.predictor.bounds import bounded_time

JOB = "model: llava-1.5-7b\nsequence_length: 1024\n"
PREDICT = ["predict", "llava-1.5-7b", "--sequence-length", "1024"]
READERS = {
    "workload": ["predict", "--workload"], "from": ["predict", "--from"], "deepspeed": [*PREDICT, "--deepspeed"],
    "samples": [*PREDICT, "--samples"], "profile": [*PREDICT, "--gpu", "h100-80gb", "--profile"],
    "conversation": ["predict", "llava-1.5-7b", "--mode", "inference", "--conversation"], "replay": ["replay"],
    "measured": ["explain", "--measured"], "report": ["report"], "gate": ["report", "x.json", "--gate"],
    "jobs": ["calibrate", "--gpu", "h100-80gb", "--device", "emulated", "--plan-only", "-o", "p.json", "--jobs-from"],
    "profiles": ["profiles"],
}


@pytest.fixture(autouse=True)
def nothing_hangs():
    with bounded_time():
        yield


@pytest.fixture
def yes():
    """The path of a pipe without end."""
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as process:
        yield f"/dev/fd/{process.stdout.fileno()}"
        process.kill()


def refused(capsys, arguments) -> str:
    assert cli.main(arguments) == cli.BAD_INPUT
    line = capsys.readouterr().err
    assert line.startswith("peakcast: error: ") and line.count("\n") == 1
    return line


@pytest.mark.parametrize("arguments", READERS.values(), ids=READERS)
def test_every_command_refuses_a_pipe_that_nobody_writes_to(tmp_path, capsys, arguments):
    os.mkfifo(tmp_path / "pipe")
    refused(capsys, [*arguments, str(tmp_path / "pipe")])


@pytest.mark.parametrize("arguments", READERS.values(), ids=READERS)
def test_every_command_refuses_a_device_without_end(capsys, arguments):
    refused(capsys, [*arguments, "/dev/zero"])


@pytest.mark.parametrize("arguments", READERS.values(), ids=READERS)
def test_every_command_refuses_a_pipe_without_end(capsys, yes, arguments):
    refused(capsys, [*arguments, yes])


@pytest.mark.parametrize("model", ["pipe.npz", "pipe.py:f"])
def test_models_that_are_pipes_are_refused(tmp_path, capsys, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(model.partition(":")[0])
    refused(capsys, ["predict", model, "--sequence-length", "1024"])


def test_what_is_written_into_a_pipe_is_read(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, JOB.encode())
    os.close(writing)
    assert read_mapping(f"/dev/fd/{reading}", "the workload")["sequence_length"] == 1024
    os.close(reading)


def test_a_writer_that_computes_first_is_waited_for(tmp_path):
    reading, writing = os.pipe()

    def write():
        for line in JOB.splitlines(keepends=True):
            time.sleep(0.7)
            os.write(writing, line.encode())
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    assert read_text(f"/dev/fd/{reading}", "the workload") == JOB
    thread.join()
    os.close(reading)


def test_a_named_pipe_whose_writer_comes_is_read(tmp_path):
    os.mkfifo(path := tmp_path / "job.yaml")
    thread = threading.Thread(target=path.write_text, args=(JOB,))
    thread.start()
    assert read_text(path, "the workload") == JOB
    thread.join()


def test_what_is_read_is_bounded_and_not_what_the_file_system_tells(tmp_path, monkeypatch):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"#" * (LARGEST_FILE_BYTES + 1))
    monkeypatch.setattr(os.path, "getsize", lambda _: 1)
    with pytest.raises(InputError, match="is larger than 4 MiB: this is not the workload"):
        read_mapping(path, "the workload")


def test_only_regular_files_are_opened_where_pipes_make_no_sense(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(OSError, match="it is no regular file"), open_bounded(path, pipes=False):
            pass
    with open_bounded(__file__, pipes=False) as stream:
        assert stream.read() == open(__file__, "rb").read()  # noqa: SIM115


def test_lines_end_as_in_text_files(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(tmp_path / "x", "x") == "a\nb\nc\n"


@pytest.mark.parametrize("text, message", [
    ("/*x" * 1_000_000, "line 1, column 1: Expecting value"),
    ('{"a": 1} /*', "line 1, column 10: Extra data"),
    ('"' + '\\"' * 1_500_000, "line 1, column 1: Unterminated string"),
    ('"' + '\\"' * 1_500_000 + "\\", "line 1, column 1: Unterminated string"),
    ("/*/ [1]", "line 1, column 1: Expecting value"),
], ids=["comments", "comment", "string", "backslash", "short"])
def test_json_whose_comments_and_strings_do_not_end_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_json(text, "x")


def test_the_key_of_many_that_is_repeated_is_named():
    keys = ", ".join(f'"k{number}": 1' for number in range(150_000))
    with pytest.raises(InputError, match='the key "k149999" is given twice'):
        parse_json(f'{{{keys}, "k149999": 2}}', "x")


def test_a_sample_that_is_one_long_quotation_is_refused(tmp_path, capsys):
    (tmp_path / "x.csv").write_text('tokens,images\n1,1\n"' + "x" * 200_000)
    assert "field larger than field limit" in refused(capsys, [*PREDICT, "--samples", str(tmp_path / "x.csv")])


def test_python_that_is_nested_too_deeply_is_refused(tmp_path, capsys):
    (tmp_path / "m.py").write_text("x = " + "-" * 100_000 + "1\n")
    assert "not valid Python" in refused(capsys, ["predict", f"{tmp_path}/m.py:f", "--sequence-length", "9"])


def test_a_large_configuration_of_a_model_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}' + " " * LARGEST_FILE_BYTES)
    assert "is larger than 4 MiB" in refused(capsys, ["predict", str(tmp_path), "--sequence-length", "9"])


def test_files_that_belong_together_are_all_written_or_none_is(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"before")
    size = 1 << 16
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))  # a file may be no larger, as on a full disk
    try:
        with pytest.raises(InputError, match="b: cannot be written: File too large"):
            write_together({str(first): b"after", str(second): bytes(2 * size)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and first.read_bytes() == b"before"


def test_none_of_several_files_is_written_if_one_of_them_is_a_directory(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="b: cannot be written: Is a directory"):
        write_together({str(tmp_path / "a"): b"x", str(tmp_path / "b"): b"y"})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
