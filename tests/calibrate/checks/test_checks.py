"""The registry of checks and the command that runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from calibrate.checks import registry, results_file
from calibrate.checks.outcome import Outcome
from calibrate.checks.registry import Check
from predictor.common.errors import InputError
from tests.calibrate.small_jobs import ROOT

EXTRA = {"allocator", "attack", "long_tests", "replay"}
"""Checks that need the tests' modules."""
HELD = Outcome({"errors": 0.01}, shown=("a [bold] table",))


@pytest.mark.parametrize("name", registry.CHECKS)
def test_a_check_says_what_is_run_how_it_is_measured_and_what_its_table_is(name):
    check = registry.CHECKS[name]
    assert check.code.__doc__ and all(map(callable, (check.jobs, check.measure, check.table, check.options)))


@pytest.mark.parametrize("name", [*registry.CHECKS, *sorted(EXTRA)])
def test_every_check_has_a_help_with_an_example(check, name, capsys):
    with pytest.raises(SystemExit) as stop:
        check.main([name, "--help"])
    said = capsys.readouterr().out
    assert stop.value.code == 0 and f"python scripts/check.py {name}" in said and "judged by: " in said


def test_the_list_has_every_check_and_imports_none():
    """Each needs other packages, which may not be there."""
    program = "import runpy, sys\nsys.argv = ['check.py', '--list']\ntry:\n    runpy.run_path(%r, run_name='__main__')\n"
    program += "finally:\n    print(sorted(set(sys.modules) & {'torch', 'transformers', 'numpy'}))\n"
    done = subprocess.run([sys.executable, "-c", program % str(ROOT / "scripts" / "check.py")], capture_output=True,
                          text=True, check=True)
    *lines, imported = done.stdout.splitlines()
    assert {line.split()[0] for line in lines[::2]} == {*registry.CHECKS, *EXTRA} and imported == "[]"


def written(path: str) -> set[Path]:
    """The files that an entry of ``Check.writes`` stands for, of every GPU and date."""
    return set(ROOT.glob(path.split()[0].replace("<gpu>", "*").replace("<date>", "*")))


def test_what_a_check_writes_in_the_repository_is_there():
    for check in registry.CHECKS.values():
        for path in check.writes:
            assert path.startswith("profiles/<gpu>/") or written(path), path


def test_every_file_of_evidence_and_every_page_is_written_by_a_check_or_a_list(check):
    known = {file for one in check.CHECKS.values() for path in one.writes for file in written(path)}
    known |= {ROOT / "profiles/pages/workspaces.md", ROOT / "profiles/pages/support.md"}
    there = {path for name in ("evidence", "pages") for path in (ROOT / "profiles" / name).iterdir()}
    assert there <= known | {path.parent for path in known}


def test_an_unknown_check_is_one_line(check, capsys):
    assert check.main(["recipe"]) == 2
    assert capsys.readouterr().err == 'error: unknown check "recipe" (did you mean "recipes"?): --list shows all\n'


@pytest.mark.parametrize("most, code", [(0.01, 0), (0.005, 1)])
def test_the_exit_code_says_whether_the_tolerance_holds(check, monkeypatch, capsys, most, code):
    monkeypatch.setattr(Check, "run", lambda self, given: HELD)
    monkeypatch.setitem(check.CHECKS, "plan", Check("calibrate.checks.plan", "", "", tolerance={"errors": most}))
    assert check.main(["plan"]) == code
    said = capsys.readouterr()
    assert said.out == "a [bold] table\n"
    assert said.err == ("broken: errors is 0.01: must be at most 0.005\n" if code else "")


def test_what_came_out_is_written(check, monkeypatch, tmp_path):
    monkeypatch.setattr(Check, "run", lambda self, given: Outcome(written={tmp_path / "page.md": "page\n"}))
    assert check.main(["gemma_report"]) == 0 and (tmp_path / "page.md").read_text() == "page\n"


def measured(file: Path, jobs: list[dict], table_only: bool = False) -> tuple[list[dict], list[dict]]:
    """The rows, and the jobs that were measured now."""
    run = []

    def row(asked):
        run.append(asked)
        if asked["job"] == "impossible":
            raise InputError("no such model")
        return {**asked, "bytes": 1}

    return results_file.Kept(file, row)(jobs, Namespace(table_only=table_only)), run


def test_only_jobs_without_a_row_are_measured_and_each_is_kept_at_once(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"job": 1, "bytes": 2}\n')
    rows, run = measured(file, [{"job": 1}, {"job": 2}])
    assert run == [{"job": 2}] and rows == [{"job": 1, "bytes": 2}, {"job": 2, "bytes": 1}] == results_file.lines(file)


def test_a_job_that_cannot_be_measured_is_said_and_left_out(tmp_path, capsys):
    rows, _ = measured(tmp_path / "rows.jsonl", [{"job": "impossible"}, {"job": 3}])
    assert [row["job"] for row in rows] == [3]
    assert '{"job": "impossible"}: no such model' in capsys.readouterr().err


def test_the_table_alone_measures_nothing(tmp_path):
    assert measured(tmp_path / "rows.jsonl", [{"job": 1}], table_only=True) == ([], [])


@pytest.mark.parametrize("name", ["emulated", "verdicts", "recipes", "models", "tensor_parallel", "inference",
                                  "maximum_load", "plan", "methods", "plan_agreement", "remedies"])
def test_every_kept_row_is_of_a_job_that_is_run(name):
    """So that nothing would be measured again."""
    check = registry.CHECKS[name]
    keys = {"plan": ("given", "searched"), "plan_agreement": ("given", "searched"),
            "methods": ("gpus", "given", "kind"), "remedies": ("job", "share")}.get(name, ("job",))
    jobs = [[job[key] for key in keys] for job in check.jobs(Namespace())]
    rows = [json.loads(line) for line in (ROOT / check.writes[0]).read_text().splitlines()]
    assert all([row[key] for key in keys] in jobs for row in rows) and len(rows) == len(jobs)
