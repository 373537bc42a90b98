"""Jobs of a campaign from a file (``--jobs-from``)."""

from __future__ import annotations

import json

import pytest

from calibrate.campaign import design, user_plan
from predictor.cli import main
from predictor.common.errors import InputError
from tests.calibrate.small_jobs import ROOT

WORKLOAD = {"model": "grouped-2-2", "sequence_length": 1024}


def saved(tmp_path, document) -> str:
    (tmp_path / "jobs.json").write_text(json.dumps(document))
    return str(tmp_path / "jobs.json")


def test_the_printed_plan_is_read_as_the_same_jobs(tmp_path, capsys):
    assert main(["calibrate", "--device", "cuda", "--gpu", "h200", "--quick", "--plan-only", "--json"]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)
    assert user_plan.read(path) == design.campaign(quick=True, communicators=False)


def test_a_job_is_fitted_where_nothing_else_is_said(tmp_path):
    [job] = user_plan.read(saved(tmp_path, {"jobs": [{"workload": WORKLOAD}]}))
    assert (job.role, job.group) == ("fit", "listed")


def test_the_jobs_of_the_device_check_are_jobs():
    jobs = user_plan.read(ROOT / "calibrate" / "checks" / "device.json")
    assert [sum(job.role == role for job in jobs) for role in design.ROLES] == [12, 7, 6]


@pytest.mark.parametrize("document, message", [
    ({}, 'has no list "jobs": peakcast calibrate --plan-only --json prints one'),
    ({"jobs": [3]}, "job 1: must be a mapping with a workload, not 3"),
    ({"jobs": [{"workload": {}}]}, "job 1: workload: model is not given"),
    ({"jobs": [{"workload": WORKLOAD, "rol": "fit"}]}, 'job 1: unknown key "rol" (did you mean "role"?)'),
    ({"jobs": [{"workload": WORKLOAD, "role": "judge"}]},
     'job 1: role: must be one of fit, holdout, validation, not "judge"'),
    ({"jobs": [{"workload": WORKLOAD, "group": 2}]}, "job 1: group: must be text, not 2"),
    ({"jobs": [{"workload": WORKLOAD | {"gpu": "h200"}}]},
     "job 1: workload: gpu is the same for all jobs: leave it out, and say --gpu"),
    ({"jobs": [{"workload": WORKLOAD | {"sequence_lenght": 1}}]},
     'job 1: unknown key "sequence_lenght" (did you mean "sequence_length"?)'),
    ({"jobs": [{"workload": WORKLOAD}] * 2}, "job 2: the same workload as job 1: leave one out"),
])
def test_a_list_that_is_none_is_one_line(tmp_path, document, message):
    path = saved(tmp_path, document)
    with pytest.raises(InputError) as error:
        user_plan.read(path)
    assert str(error.value) == f"{path}: {message}"


def test_quick_and_a_list_are_two_answers_to_one_question(tmp_path, capsys):
    path = saved(tmp_path, {"jobs": [{"workload": WORKLOAD}]})
    words = ["calibrate", "--device", "emulated", "--gpu", "h200", "--jobs-from", path]
    assert main([*words, "--quick", "--plan-only"]) == 2
    assert "--quick and --jobs-from both say which jobs: give one" in capsys.readouterr().err


def test_the_plan_shows_the_listed_jobs(tmp_path, capsys):
    path = saved(tmp_path, {"jobs": [{"workload": WORKLOAD, "role": "holdout"}]})
    assert main(["calibrate", "--device", "cuda", "--gpu", "h200", "--jobs-from", path, "--plan-only", "--json"]) == 0
    [job] = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["role"], job["workload"]) == ("holdout", WORKLOAD)
