"""A few minutes of the attack: some inputs of every format, some rounds of relations, and the attack's own parts.

All of it is ``python scripts/check.py attack``.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.checks import results_file
from predictor.common.errors import InputError
from tests.attack import (
    answers,
    check,
    disturbances,
    frameworks,
    fuzzing,
    jobs,
    optimizer_states,
    page,
    predictions,
    relations,
    seeded,
    valid_files,
)
from tests.attack.branches import Branches
from tests.attack.disturbances import DISTURBANCES
from tests.attack.formats import GRAMMARS, each
from tests.attack.inputs import Input
from tests.attack.judge import judge
from tests.attack.kills import PLAN, SCENES, Killer
from tests.attack.processes import NotTried
from tests.attack.programs import ROOT, Died
from tests.attack.seeded_bugs import OWN
from tests.attack.targets import TARGETS, TOKENIZED, nothing_traced
from tests.attack.worker import DIGEST_BYTES

INPUTS = 120
"""Inputs of each format."""
LARGE = {"bomb": 20, "job": 40}
"""Inputs of the formats that come nearest to the limits of time and memory. They are judged in a process of their own, by these limits, too."""
PREDICTS = ("options", "profile", "samples")
"""Formats of which many inputs are predicted: seconds."""


@pytest.fixture
def quiet(monkeypatch, tmp_path):
    """As in the attack's own processes."""
    for name, value in {"COLUMNS": "100", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "PEAKCAST_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", [name for name in GRAMMARS if name not in (*PREDICTS, *LARGE)])
def test_inputs_of_a_format_are_read_or_refused_in_one_line(name, quiet, tmp_path):
    found, inside = [], tmp_path / "inside"
    inside.mkdir()

    def run(one: Input) -> None:
        problem = judge(one, inside).problem
        # this process has imported more than a reader, and another one runs beside it: a hang is found all the same
        if problem and not problem.startswith(("memory", "slow")):
            found.append((problem, one))

    with nothing_traced(name in TOKENIZED):
        each(name, 12345, INPUTS, run)  # the attack's batches have other seeds
    assert found == []


@pytest.mark.parametrize("name", LARGE)
def test_inputs_of_a_large_format_keep_within_time_and_memory(name):
    found = fuzzing.run(fuzzing.Batch(name, 12345, LARGE[name]))
    assert found["findings"] == [] and LARGE[name] // 2 < found["inputs"] == len(base64.b64decode(found["digests"])) / DIGEST_BYTES


def test_a_campaign_that_is_killed_ends_with_the_same_rows():
    killed = Killer().kill("campaign", 5)
    assert killed.wrong == [] and killed.running >= 1


def test_a_job_in_a_frameworks_words_is_the_plain_workload(quiet):
    violations = [violation for number in range(10_000, 10_008) for violation in frameworks.play(number).violations]
    assert violations == []


def test_states_of_adamw_are_two_numbers_for_each_that_trains(quiet):
    assert [violation for number in (10_000, 10_001) for violation in optimizer_states.play(number).violations] == []


@pytest.mark.parametrize("number", (10_000, 10_001, 10_003))  # every third is traced, which takes seconds
def test_related_jobs_have_related_predictions(number, quiet):
    found = predictions.play(number)
    assert found.violations == [] and sum(found.checked.values()) > 10


def test_an_input_is_kept_and_repeated(tmp_path):
    before = Input("read", ("c.yaml",), {"c.yaml": b"a: 1\n", "x": bytes(range(256))})
    assert Input.from_json(json.loads(json.dumps(before.to_json()))) == before
    before.write(tmp_path)
    assert (tmp_path / "x").read_bytes() == bytes(range(256))


def _target(what):
    def target(*words: str) -> None:
        what()

    return target


def _hang() -> None:
    while True:
        pass


def _refuse(text: str) -> None:
    error = InputError()
    error.args = (text,)  # as if the error itself did not cut it
    raise error


@pytest.mark.parametrize("what, problem", [
    (lambda: None, None), (lambda: _refuse("a: b"), None), (lambda: {}["x"], "traceback: KeyError"), (lambda: exit(3), "traceback: SystemExit"),
    (lambda: _refuse("x" * 4_000), "error of 4,000 characters"), (_hang, "hangs"), (lambda: Path("left").touch(), "left files behind: left"),
])
def test_what_no_input_may_lead_to_is_a_finding(what, problem, tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    monkeypatch.setitem(TARGETS, "it", _target(what))
    monkeypatch.setattr("tests.attack.judge.HANGS_SECONDS", 1)
    monkeypatch.setattr("tests.attack.judge.MOST_BYTES", 1 << 60)  # this process has imported torch
    found = judge(Input("it"), tmp_path / "inside").problem
    assert found is None if problem is None else found is not None and found.startswith(problem)
    assert list((tmp_path / "inside").iterdir()) == []


@pytest.mark.parametrize("waits, found", [((0.2, 0.2), "slow by the clock"), ((0.2, 0.0), None)])
def test_what_waits_twice_is_a_finding(waits, found, tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    left = iter(waits)
    monkeypatch.setitem(TARGETS, "it", _target(lambda: time.sleep(next(left))))
    monkeypatch.setattr("tests.attack.judge.MOST_CLOCK_SECONDS", 0.1)
    monkeypatch.setattr("tests.attack.judge.MOST_BYTES", 1 << 60)  # this process has imported torch
    problem = judge(Input("it"), tmp_path / "inside").problem
    assert problem is None if found is None else problem is not None and problem.startswith(found)


def test_what_takes_the_processor_too_long_at_first_is_a_finding(tmp_path, monkeypatch):
    """Although it takes no time the second time, as where a result is remembered."""
    (tmp_path / "inside").mkdir()
    left = iter((0.3, 0.0))

    def burn() -> None:
        until = time.process_time() + next(left)
        while time.process_time() < until:
            pass

    monkeypatch.setitem(TARGETS, "it", _target(burn))
    monkeypatch.setattr("tests.attack.judge.MOST_SECONDS", 0.1)
    monkeypatch.setattr("tests.attack.judge.MOST_CLOCK_SECONDS", 0.2)
    problem = judge(Input("it"), tmp_path / "inside").problem
    assert problem is not None and problem.startswith("slow: 0.3")


def test_an_attack_that_tried_little_says_what(monkeypatch):
    monkeypatch.setattr(page, "LEAST", {name: 1 for name in page.LEAST} | {"relations": 3})
    row = {"part": "relations", "name": "page/0", "checked": {"a": 2}, "models": ["llava-1.5-7b"], "violations": []}
    assert page.Summary.of([row]).too_few() == ["0 distinct inputs, of 1", "2 relations, of 3", "0 kills of a running command, of 1", "0 seeded bugs, of 1",
                                                "0 bugs among them that this project had, of 1"]


def test_a_process_without_an_answer_is_a_finding(monkeypatch):
    def dies(*words):
        raise Died("killed")

    monkeypatch.setattr(check.programs, "answer", dies)
    rows = [{"part": part, "name": "it", **check._ended(*words)} for part, words in (("relations", ("relations", "page", 0, 1)), ("kills", ("kills", "scene")))]
    assert [bool(list(page.problems(row))) for row in rows] == [True, True] and all(page.Summary.of([row]).figures() for row in rows)


def test_a_round_that_raises_is_a_violation(monkeypatch):
    """As one does whose answer is no JSON."""
    monkeypatch.setitem(relations.KINDS, "page", lambda number: json.dumps(float("nan"), allow_nan=False))
    [violation] = relations.rounds("page", 3, 1)["violations"]
    assert violation["relation"] == "a round ends" and "ValueError" in violation["numbers"]["error"]


@pytest.mark.parametrize("raised, row", [(disturbances.NotAllowed("a"), {"not_run": "a"}), (NotTried("b"), {"not_tried": "b"})])
def test_a_disturbance_that_cannot_be_made_finds_nothing(raised, row, monkeypatch):
    def disturbance() -> list[str]:
        raise raised

    monkeypatch.setitem(DISTURBANCES, "it", disturbance)
    assert disturbances.disturbed("it") == {"disturbance": [], **row}


TAKES_MEMORY = """
import sys
from pathlib import Path
from tests.attack.inputs import Input
from tests.attack.judge import judge
from tests.attack.targets import TARGETS
TARGETS["it"] = lambda *words: eval(sys.argv[2])
print(judge(Input("it"), Path(sys.argv[1])).problem)
"""


CHILD = """__import__("subprocess").run([sys.executable, "-c", "bytearray(600 << 20)"])"""


@pytest.mark.parametrize("what", ("bytearray(600 << 20)", CHILD))
def test_much_memory_is_a_finding(what, tmp_path):
    """That of a process which an input starts, too. In a process of its own: some systems do not let a process forget how much memory it has had."""
    done = subprocess.run([sys.executable, "-c", TAKES_MEMORY, str(tmp_path), what], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    assert done.stdout.startswith("memory: ")


def test_a_valid_file_near_a_limit_is_read(tmp_path):
    valid_files.KINDS["log"].write(tmp_path / "x.log")
    found = valid_files.read_by("log", str(tmp_path), 0)
    assert found["problem"] is None and found["refused"] is None and not list(valid_files.problems(found, 24 << 20))
    assert list(valid_files.problems(found | {"bytes": 10**10}, 24 << 20)) == ["memory: 10000 MB, more than 1003 MB"]


def test_a_process_that_dies_is_a_finding(monkeypatch):
    monkeypatch.setattr(fuzzing, "SECONDS", 0.01)
    [finding] = fuzzing.run(fuzzing.Batch("gates", 0, 1))["findings"]
    assert finding["problem"].startswith("the process took more than")


@settings(deadline=None)
@given(st.integers(1, 300_000))
def test_batches_have_as_many_inputs_as_are_asked_for(inputs):
    found = fuzzing.batches(inputs)
    assert inputs <= sum(batch.inputs for batch in found) <= inputs + len(GRAMMARS)
    assert len({batch.name for batch in found}) == len(found) and max(batch.inputs for batch in found) <= fuzzing.INPUTS


def test_every_seeded_bug_is_a_patch_of_todays_code():
    wrong = [bug.name for bug in seeded.BUGS if (ROOT / bug.file).read_text().count(bug.old) != 1 or bug.old == bug.new]
    assert wrong == [] and len(seeded.BUGS) >= 20 and sum(bool(bug.met) and bug.met not in OWN for bug in seeded.BUGS) >= 10
    assert len({bug.name for bug in seeded.BUGS}) == len(seeded.BUGS)


ROWS = [
    {"part": "fuzz", "name": "shell/0", "date": "2026-01-02", "inputs": 1_000, "refused": 700, "untraced": 30, "seconds": 0.5, "clock_seconds": 2.5, "bytes": 90 << 20, "problems": 1, "digests": "AAAAAAEAAAAAAg==",
     "findings": [{"problem": "traceback: KeyError", "input": None}]},
    {"part": "fuzz", "name": "shell/1", "date": "2026-01-02", "inputs": 500, "refused": 300, "untraced": 4, "seconds": 1.5, "clock_seconds": 1.6, "bytes": 80 << 20, "problems": 0, "findings": [], "digests": "AAAAAAI="},
    {"part": "relations", "name": "prediction/0", "checked": {"factors add up": 7}, "violations": [], "models": ["a", "b"]},
    {"part": "kills", "name": "trace/SIGKILL/0", "kills": {"0": {"running": 1, "wrong": []}, "1": {"running": 0, "wrong": ["another result"]}}},
    {"part": "kills", "name": "read_only", "disturbance": []},
    {"part": "kills", "name": "full_file_system", "disturbance": [], "not_run": "nothing may be mounted here"},
    {"part": "kills", "name": "torn", "disturbance": [], "not_tried": "exit code 1"},
    {"part": "kills", "name": "valid_files", "disturbance": [], "files": [
        {"file": "log", "reader": "log x.log", "file_bytes": 25_000_000, "problem": None, "refused": "a | b", "seconds": 1.2, "bytes": 9_000_000},
        {"file": "log", "reader": "command oom x.log", "file_bytes": 25_000_000, "problem": None, "refused": None, "seconds": 1.2, "bytes": 9_000_000}]},
    {"part": "seeded", "name": "a bug", "met": "", "found_by": "fuzz shell", "batch": 0, "batches": 86}, {"part": "seeded", "name": "another", "met": "abc", "found_by": ""},
    {"part": "branches", "name": "readers", "inputs": 10, "of": "predictor/readers", "branches": 4, "reached": 3, "lines": 9, "lines_reached": 9},
]


def test_rows_add_up():
    summary = page.Summary.of(ROWS)
    assert summary.figures() == {"findings among inputs": 1, "violated relations": 0, "kills with another end": 2, "seeded bugs that were not found": 1}
    assert list(summary.lines()) == [
        "1,500 inputs of 1 formats, 2 of them distinct, 1,000 refused, 34 of them for want of a formula: 1 findings; at most 1.5 s of the processor, 2.5 s by the clock and 94 MB", "7 relations over 2 models, 0 known by name and 2 variants of them: 0 violated; without an answer: none",
        "1 kills of a running command, and 1 just after its end: 1 with another end; 4 disturbances: 1 with a problem, 1 not run", "1 of 2 seeded bugs found; this project had met 1 of them otherwise, and 0 in earlier attacks",
        "3 of 4 branches of predictor/readers reached by 10 inputs"]
    text = page.text(summary)
    assert "- shell: traceback: KeyError: `null`" in text
    assert "| shell | 1,500 | 2 | 1,000 | 34 | 1 | 1.5 | 2.5 | 94 |" in text and "| another | abc | **not found** |" in text
    assert "| a bug | no | fuzz shell, batch 1 of 86 |" in text and "| full file system | not run: nothing may be mounted here |" in text
    assert "| log | 25 | `log x.log` | a / b | 1.2 | 9 |" in text and "| log | 25 | `command oom x.log` | read | 1.2 | 9 |" in text
    assert list(page.problems(ROWS[6])) == ["not tried: exit code 1"]
    assert Branches(4, 3, 9, 9).share == 0.75


def test_what_is_kept_is_not_run_again_and_a_torn_line_is(tmp_path, monkeypatch):
    command = run_path(str(ROOT / "scripts/check.py"))

    ran: list[str] = []

    def run(batch: fuzzing.Batch) -> dict:
        ran.append(batch.name)
        return dict.fromkeys(("inputs", "refused", "untraced", "problems", "bytes"), 1) | {"seconds": 0.0, "findings": [], "problems": 0, "digests": ""}

    monkeypatch.setattr(fuzzing, "run", run)
    words = ["--part", "fuzz", "--inputs", "60", "--only", "* file", "--results", str(tmp_path / "r.jsonl")]
    for _ in range(2):
        args = command["arguments"]("attack", words)
        rows = check.measure(check.jobs(args), args)
        assert len(rows) == len(ran) == 8
    content = (tmp_path / "r.jsonl").read_bytes()
    (tmp_path / "r.jsonl").write_bytes(content[:-9])
    assert len(results_file.lines(tmp_path / "r.jsonl")) == 7
    check.measure(check.jobs(args), args)
    assert len(ran) == 9 and ran[-1] == ran[7] and (tmp_path / "r.jsonl").read_bytes().count(b"\n") == 8


def test_kinds_of_rounds_have_shares_and_the_plan_has_fifty_kills():
    assert relations.KINDS.keys() == check.SHARES.keys() == check.ROUNDS.keys()
    assert sum(count for _, _, count in PLAN) >= 50 and {scene for scene, _, _ in PLAN} <= SCENES.keys()
    assert not DISTURBANCES.keys() & SCENES.keys()


def test_each_model_has_a_round():
    assert check.SHARES["shipped"] == len(jobs.shipped())
    assert check.SHARES["fresh trace"] == len(jobs.shipped()) + len(jobs.replies())
    assert check.SHARES["adapters"] == len(answers.adapted())


def test_an_older_row_is_read():
    """It lacks the time by the clock, and the batch that found a bug."""
    older = {name: item for name, item in ROWS[1].items() if name != "clock_seconds"}
    summary = page.Summary.of([older, ROWS[0], {"part": "seeded", "name": "a bug", "met": "", "found_by": "fuzz shell"}])
    text = page.text(summary)
    assert "an unknown time by the clock" in text and "| 1 | 1.5 | not kept | 94 |" in text and "| a bug | no | fuzz shell |" in text
