"""Output of commands: stdout or a file, text or JSON, and never half an answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.cli import main
from predictor.commands import output
from tests.predictor import samples

ENOUGH = ["llava-1.5-7b", "--sequence-length", "1024"]


@pytest.fixture(autouse=True)
def prediction(monkeypatch):
    monkeypatch.setattr("predictor.answer.predict.predict", lambda workload, **_: samples.prediction(workload))


@pytest.fixture
def never(monkeypatch):
    def predict(workload, **_):
        raise AssertionError("nothing may be computed before the output is known to be writable")

    monkeypatch.setattr("predictor.answer.predict.predict", predict)


def error_of(capsys, *argv: str) -> str:
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_json_is_all_there_is_on_stdout(capsys, command):
    assert main([command, *ENOUGH, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["peak_allocated_bytes"] == 46_707_769_344 and err == ""
    assert sum(document["factors"].values()) == document["peak_allocated_bytes"]


def test_explain_adds_moments_layers_and_the_timeline_to_the_result(capsys):
    assert main(["explain", *ENOUGH, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [m["requested_bytes"] >> 30 for m in document["highest_moments"]] == [43, 40]
    assert document["layers"]["vision_tower"] == {"parameters": 1 << 30}
    assert len(document["timeline"]["event"]) == len(document["timeline"]["requested_bytes_by_factor"]["activations"])


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_file_gets_what_the_terminal_would(tmp_path, capsys, form):
    assert main(["predict", *ENOUGH, *form]) == 0
    shown = capsys.readouterr().out
    assert main(["predict", *ENOUGH, *form, "-o", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "" and (tmp_path / "out").read_text() == shown
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_file_is_not_overwritten_without_force(tmp_path, capsys, never):
    path = tmp_path / "out"
    path.write_text("mine")
    assert "exists already: add --force" in error_of(capsys, "predict", *ENOUGH, "-o", str(path))
    assert path.read_text() == "mine"


def test_force_overwrites(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    assert main(["predict", *ENOUGH, "-o", str(path), "--force"]) == 0
    assert path.read_text().startswith("Peak 43.50 GiB allocated, 45.00 GiB reserved.")


@pytest.mark.parametrize("path, message", [
    ("/nowhere/at/all/x", "its directory does not exist"), ("/dev/null", "is not a regular file"),
    (".", "is not a regular file"), ("a\0b", "cannot be written"),
])
def test_an_unwritable_path_is_found_before_anything_is_computed(capsys, never, path, message):
    assert message in error_of(capsys, "predict", *ENOUGH, "-o", path)
    assert message in error_of(capsys, "explain", *ENOUGH, "--picture", path) or "SVG" in message


def test_a_write_that_fails_leaves_no_file(tmp_path, capsys, monkeypatch):
    def replace(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    assert "cannot be written: No space left on device" in error_of(capsys, "predict", *ENOUGH, "-o", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_the_picture_is_written_beside_the_report(tmp_path, capsys):
    picture = tmp_path / "timeline.svg"
    assert main(["explain", *ENOUGH, "--picture", str(picture)]) == 0
    assert picture.read_text().startswith("<svg ") and "The highest moments" in capsys.readouterr().out


SHOW = """
import sys
import predictor.answer.predict
from tests.predictor import samples
predictor.answer.predict.predict = lambda workload, **_: samples.prediction(workload)
from predictor.cli import main
from predictor.commands import output
sys.exit(main([*sys.argv[1:], "m", "--sequence-length", "9"]))
"""


def run(stdout, *argv, **environment):
    return subprocess.run([sys.executable, "-c", SHOW, *argv], stdout=stdout, stderr=subprocess.PIPE, text=True,
                          cwd=Path(__file__).parents[3], env=os.environ | {"PYTHONPATH": "."} | environment)


@pytest.mark.parametrize("argv", [["explain"], ["predict", "--json"]])
def test_a_reader_that_leaves_early_gets_no_traceback(argv):
    read, write = os.pipe()
    os.close(read)
    result = run(write, *argv)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize("argv", [["explain"], ["predict", "--json"]])
def test_a_full_disk_is_one_line(argv):
    with open("/dev/full", "w") as full:
        result = run(full, *argv)
    assert result.returncode == 2 and "No space left on device" in result.stderr and result.stderr.count("\n") == 1


def closed(*argv) -> tuple[int, str]:
    """Exit code and stderr with ``>&-``."""
    shell = 'script=$1; shift; exec "$0" -c "$script" "$@" >&-'
    result = subprocess.run(["sh", "-c", shell, sys.executable, SHOW, *argv], stderr=subprocess.PIPE, text=True,
                            cwd=Path(__file__).parents[3], env=os.environ | {"PYTHONPATH": "."})
    return result.returncode, result.stderr


@pytest.mark.parametrize("argv", [["explain"], ["predict", "--json"]])
def test_a_closed_output_is_one_line(argv):
    assert closed(*argv) == (2, "peakcast: error: standard output is closed: give -o FILE, or leave it open\n")


def test_a_closed_output_does_not_matter_to_a_file(tmp_path):
    assert closed("predict", "-o", str(tmp_path / "answer.txt")) == (0, "")
    assert "requested" in (tmp_path / "answer.txt").read_text()


def test_a_terminal_without_unicode_still_shows_everything():
    result = run(subprocess.PIPE, "explain", "--details", PYTHONIOENCODING="ascii")
    assert result.returncode == 0 and "PPPP" in result.stdout and result.stdout.isascii()


@pytest.mark.parametrize(("seconds", "lines"), [(9, ""), (10, "what is known\n")])
def test_long_work_tells_a_plain_line_every_ten_seconds(monkeypatch, capsys, seconds, lines):
    monkeypatch.setattr(output.time, "monotonic", lambda: 100)
    told = output.Told()
    monkeypatch.setattr(output.time, "monotonic", lambda: 100 + seconds)
    told(lambda: "what is known")
    told(lambda: "and again at once")
    assert capsys.readouterr().err == lines


def test_a_long_trace_says_which_shape_it_has_reached_where_stderr_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(output, "EVERY", 0)
    assert [*output.progress("ab")] == ["a", "b"]
    assert capsys.readouterr().err == "".join(output.TRACING.format(number, 2) + "\n" for number in (1, 2))


@pytest.mark.parametrize(("options", "lines"), [
    ((), 'PYTORCH_CUDA_ALLOC_CONF of this shell is not read: give --allocator-conf "expandable_segments:True"\n'),
    (("--allocator-conf", "expandable_segments:True"), "")])
def test_settings_of_the_shell_are_not_read_and_said_not_to_be(monkeypatch, capsys, options, lines):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    main(["predict", *ENOUGH, *options])
    assert capsys.readouterr().err == lines
