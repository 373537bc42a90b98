"""Other processes trace formulas for a plan. Its answer is the same with them, without them, and if they end."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from predictor.plan import background, document, plan
from predictor.plan.background import Background
from predictor.plan.memory import Memory, Point, Question
from predictor.plan.space import space
from tests.predictor.small import small_llama

OF_THE_SEARCH = ("seconds", "counts")


@pytest.fixture
def given(tmp_path, monkeypatch):
    """The keys of a small model that has no formulas yet."""
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(background, "_processes", lambda: 1)
    (tmp_path / "small.json").write_text(json.dumps(small_llama()))
    return {"model": str(tmp_path / "small.json"), "sequence_length": 128, "gpu": "rtx-4090", "engine": "torch",
            "optim": "adamw_torch_fused", "recipe": "full"}


def _planned(given):
    result = document.to_json(plan(given))
    return {name: value for name, value in result.items() if name not in OF_THE_SEARCH}, result["counts"]["traced"]


def _formulas(tmp_path):
    return {path.name for path in (tmp_path / "cache" / "formulas").iterdir()}


def test_a_plan_is_the_same_with_and_without_other_processes(given, tmp_path, monkeypatch):
    with_processes, traced = _planned(given)
    formulas = _formulas(tmp_path)
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "other" / "cache"))
    monkeypatch.setattr(background, "_processes", lambda: 0)
    without, traced_alone = _planned(given)
    assert (with_processes, formulas) == (without, _formulas(tmp_path / "other"))
    assert traced == traced_alone > 1


def test_another_process_traces_what_a_question_needs(given, tmp_path):
    memory = Memory()
    first, *_ = space(given).settings
    question = Question(first, 1, [Point(1, 128)], [])
    with Background(memory) as processes:
        processes.begin([question])
        while not any(task.traced.running() or task.traced.done() for task in processes._tasks.values()):
            time.sleep(0.01)
        processes.finish(question, lambda: None)
    assert memory.missing(question) is None and memory.counts.traced == len(_formulas(tmp_path)) == 1


def test_a_process_that_ends_is_one_line_and_the_plan_is_the_same(given, tmp_path, monkeypatch, capsys):
    ends = [sys.executable, "-c", "import sys; sys.exit(3)"]
    monkeypatch.setattr(background, "_started", lambda: subprocess.Popen(
        ends, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    broken, traced = _planned(given)
    lines = [line for line in capsys.readouterr().err.splitlines() if "background" in line]
    assert lines == ["peakcast: a process that traced models in the background ended with exit code 3: going on without it"]
    assert broken["proposed"] and traced == len([name for name in _formulas(tmp_path) if name.endswith("npz")])


def test_an_interrupt_ends_the_processes(given):
    started = []

    def interrupt():
        started.extend(processes._processes)
        raise KeyboardInterrupt

    question = Question(space(given).settings[0], 1, [Point(1, 128)], [])
    with pytest.raises(KeyboardInterrupt), Background(Memory()) as processes:
        processes.begin([question])
        while not processes._processes:
            time.sleep(0.01)
        processes.finish(question, interrupt)
    assert [process.poll() for process in started] == [-9]


def test_nothing_is_traced_in_the_background_without_permission_or_a_cache(given, monkeypatch):
    assert Background(Memory(trace=False))._number == 0
    monkeypatch.setattr(background, "cache_directory", lambda: None)
    assert Background(Memory())._number == 0
