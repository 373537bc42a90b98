"""Directories for caches, and users without a writable one."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.cli import main
from predictor.common import storage
from predictor.formula import store
from predictor.jobs import dispatch, training_job
from predictor.workload.workload import Workload
from tests.predictor.small import small_config

SHIPPED = ["predict", "llava-1.5-7b", "--recipe", "finetune", "--sequence-length", "1024", "--data-parallel-size", "8",
           "--zero-stage", "2"]


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """A user of whom only the number is known, as in containers; the current directory is empty."""
    def unknown(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "XDG_CACHE_HOME", "PEAKCAST_CACHE", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")


@pytest.mark.parametrize("words", [SHIPPED, ["models"], ["profiles"]])
def test_without_a_home_commands_answer(nobody, words, capsys):
    assert main(words) == 0
    assert os.listdir() == []


def test_without_a_place_a_formula_is_traced_once_a_process(nobody, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    workload = Workload(model=str(tmp_path), sequence_length=64, per_device_train_batch_size=2, profile="none")
    monkeypatch.setattr(store, "_NOT_KEPT", {})
    storage.ensure_user_name()
    assert training_job.needs_trace(dispatch.resolve(workload))
    first = dispatch.prepare(workload).formula
    assert not training_job.needs_trace(dispatch.resolve(workload))
    assert dispatch.prepare(workload).formula is first
    assert os.listdir() == []


@pytest.mark.parametrize("directory", ["/" + "x" * 300, "/dev/null"])
def test_a_place_that_cannot_be_looked_at_has_no_formula(directory, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    monkeypatch.setenv("PEAKCAST_CACHE", directory)
    monkeypatch.setattr(store, "_NOT_KEPT", {})
    workload = Workload(model=str(tmp_path), sequence_length=64, per_device_train_batch_size=2)
    assert training_job.needs_trace(dispatch.resolve(workload))


def test_pytorch_finds_a_name_for_a_user_without_one(nobody):
    assert main(["profiles"]) == 0
    assert getpass.getuser() == str(os.getuid())


@pytest.mark.parametrize("named", ["", "cache", "~/cache"])
def test_a_relative_cache_directory_is_none(named, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PEAKCAST_CACHE", raising=False)
    assert store.cache_directory() == tmp_path / ".cache" / "peakcast"


def test_a_relative_home_is_none(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "here")
    monkeypatch.delenv("PEAKCAST_CACHE", raising=False)
    assert store.cache_directory() is None


def test_a_private_directory_is_of_one_user_and_goes_with_its_process(tmp_path):
    script = ("import os\nfrom predictor.common import storage\n"
              "print(storage.private_directory(), oct(storage.private_directory().stat().st_mode))\n"
              "if os.fork():\n    os.wait()\n    print(storage.private_directory().exists(), flush=True)\n")
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], text=True, check=True,
                          capture_output=True, env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"})
    directory, mode, *after_the_fork = done.stdout.split()
    assert Path(directory).parent == tmp_path and stat.S_IMODE(int(mode, 8)) == 0o700
    assert after_the_fork == ["True"] and not Path(directory).exists()
