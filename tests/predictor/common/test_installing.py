"""The advice to install packages names the interpreter that runs peakcast."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from predictor.common.installing import pip_install

ROOT = Path(__file__).parents[3]
MODULES = [file for package in ("predictor", "calibrate") for file in (ROOT / package).rglob("*.py")]


@pytest.mark.parametrize("python, shown", [
    ("/opt/python", "/opt/python"), ("{here}/.venv/bin/python", ".venv/bin/python"),
    ("/opt/my env/python", "'/opt/my env/python'")])
def test_the_command_has_the_interpreter_as_a_shell_reads_it(python, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", python.format(here=tmp_path))
    assert pip_install("peakcast[trace]") == f"{shown} -m pip install 'peakcast[trace]'"


def test_an_environment_without_pip_is_one_of_uv(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/opt/python")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert pip_install("pyarrow") == "uv pip install --python /opt/python pyarrow"


def test_another_interpreter_can_be_named():
    assert pip_install("torch", interpreter="/opt/python") == "/opt/python -m pip install torch"


def test_no_message_has_a_command_of_its_own():
    raised = [(file.relative_to(ROOT).as_posix(), text.value) for file in MODULES
              for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Raise | ast.Call)
              for text in ast.walk(node) if isinstance(text, ast.Constant) and isinstance(text.value, str)
              and "pip install" in text.value and file.parent.name != "checks"]
    assert raised == []
