"""Child interpreters ignore the current directory and run the code of the process that started them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from calibrate.campaign import environment, run
from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, opened
from calibrate.dryrun.dryrun import dryrun
from calibrate.emulator.build import ensure_built
from calibrate.measure import warm_workers
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.measure.measure import measure
from calibrate.records.record import MeasuredOn
from calibrate.training import background_prediction
from predictor.common.errors import InputError
from tests.calibrate.small_jobs import needs_emulator, workload

PLANTED = ("runpy", "linecache", "multiprocessing", "numpy", "torch", "sitecustomize")
"""Modules that every interpreter imports, and modules that ours do."""
SHIPPED = {"model": "llava-1.5-7b", "recipe": "finetune", "sequence_length": 1024, "data_parallel_size": 8,
           "zero_stage": 2, "gpu": "a100-40gb", "rank": 0}

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache", "importing_tests")]


@pytest.fixture
def ran(tmp_path, monkeypatch) -> Path:
    """Where modules of the current directory note that they ran."""
    found, directory = tmp_path / "ran", tmp_path / "current"
    directory.mkdir()
    for name in PLANTED:
        (directory / f"{name}.py").write_text(f"with open({str(found)!r}, 'a') as file: file.write('{name} ')\n")
    monkeypatch.chdir(directory)
    return found


def measured(directory: Path) -> None:
    measure(workload(directory), verbose=True)


def measured_by_a_fork(directory: Path) -> None:
    with warm_workers.forked_jobs():
        measure(workload(directory))


def asked(directory: Path) -> None:
    environment.read_environment(MeasuringDevice("h100-80gb", MeasuredOn.EMULATED))


def predicted_ahead(directory: Path | None = None) -> None:
    assert background_prediction.ask(background_prediction.Question(SHIPPED)).predicted


def campaigned(directory: Path) -> None:
    job = Job({"model": "small", "sequence_length": 1}, "fit", "shape")
    with opened(str(directory / "rows.jsonl")) as store:
        assert run.run([job], failed, store, run.Limits()) == 0
        assert [row.failed for row in store.rows] == ["as it is told to"]


def failed(job: Job) -> Row:
    return Row(job.id, job.role, job.group, dict(job.keys), failed="as it is told to")


def built_anew(directory: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory))
        assert ensure_built().binary_versions


DOORS: list[Callable[[Path], None]] = [measured, measured_by_a_fork, asked, predicted_ahead, campaigned, built_anew]


@pytest.mark.parametrize("door", DOORS)
def test_nothing_of_the_current_directory_runs(door, ran, tmp_path):
    door(tmp_path)
    assert not ran.exists(), ran.read_text()


def test_an_empty_entry_of_the_path_is_not_the_current_directory(ran, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep + "/nowhere")
    predicted_ahead()
    assert not ran.exists(), ran.read_text()


def test_a_directory_that_the_path_names_is_looked_into(ran, monkeypatch, tmp_path):
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "numpy.py").write_text("raise ImportError('the numpy that is named')\n")
    monkeypatch.setenv("PYTHONPATH", os.path.join("..", "named"))
    with pytest.raises(InputError, match="the numpy that is named"):
        predicted_ahead()


def test_a_child_has_the_code_of_the_process_that_started_it(monkeypatch, tmp_path):
    for name in ("calibrate", "predictor", "profiles"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('another release')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    predicted_ahead()


def test_includes_of_the_compiler_are_not_taken_from_the_current_directory(ran, monkeypatch, tmp_path):
    Path("stdio.h").write_text("#error taken from the current directory\n")
    monkeypatch.setenv("CPATH", os.pathsep + "/nowhere")
    built_anew(tmp_path)


def test_the_users_own_script_has_its_usual_path(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import pathlib, sys\n(pathlib.Path(sys.path[0]) / 'first').write_text(sys.path[0])\n")
    with pytest.raises(InputError, match="before it used a GPU"):
        dryrun([sys.executable, str(script)])
    assert (tmp_path / "first").read_text() == str(tmp_path)
