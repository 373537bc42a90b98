"""Models are traced in another environment's interpreter, which answers like this one with the same packages."""

from __future__ import annotations

import json
import os
import sys

import pytest

from predictor.cli import main
from predictor.common.errors import InputError
from predictor.formula import interpreter
from tests.predictor.small import small_llama


@pytest.fixture
def other_path(tmp_path):
    """This environment's interpreter, by another path."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    os.chmod(path, 0o755)
    return str(path)


def test_an_interpreter_tells_the_versions_of_its_environment(other_path):
    from importlib import metadata

    assert interpreter.find(other_path).versions["transformers"] == metadata.version("transformers")


def test_what_is_no_interpreter_is_rejected_in_one_line():
    with pytest.raises(InputError, match="cannot be run.*give the path of a Python interpreter"):
        interpreter.find("/nonexistent/python")


@pytest.mark.parametrize("output", ["1", "{}", "[]", "no JSON"])
def test_another_program_is_rejected_in_one_line(tmp_path, capsys, output):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    os.chmod(path, 0o755)
    assert main(["predict", "llava-1.5-7b", "--sequence-length", "1024", "--python", str(path)]) == 2
    assert capsys.readouterr().err.startswith("peakcast: error: --python")


def test_an_environment_without_torch_is_rejected_by_its_name(tmp_path):
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\necho \'{"python": "3.11.7", "transformers": "4.57.1"}\'\n')
    os.chmod(path, 0o755)
    with pytest.raises(InputError, match="torch is not installed there"):
        interpreter.find(str(path))


def test_a_python_before_3_10_is_rejected(tmp_path):
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\necho \'{"python": "3.8.1"}\'\n')
    os.chmod(path, 0o755)
    with pytest.raises(InputError, match="Python 3.8.1, tracing needs 3.10 or later"):
        interpreter.find(str(path))


def test_a_job_whose_deepspeed_is_not_installed_there_is_rejected(tmp_path, capsys):
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\necho \'{"python": "3.11.7", "torch": "2.8.0", "transformers": "4.57.1"}\'\n')
    os.chmod(path, 0o755)
    assert main(["predict", "llava-1.5-7b", "--sequence-length", "1024", "--zero-stage", "2", "--python", str(path)]) == 2
    assert "deepspeed is not installed there" in capsys.readouterr().err


def test_a_model_is_traced_there_as_here(other_path, tmp_path, capsys, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(small_llama()))
    answers = []
    for words in ([], ["--python", other_path]):
        monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / f"cache{len(answers)}"))
        assert main(["predict", str(tmp_path), "--sequence-length", "64", "--json", *words]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    here, there = ({key: answer[key] for key in answer if key.startswith("peak_")} for answer in answers)
    assert here == there and any((tmp_path / "cache1").rglob("*.npz"))
