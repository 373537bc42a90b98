"""The README is short, and its first commands and its picture are today's."""

from __future__ import annotations

import json
import re
import shlex

from predictor.cli import main
from predictor.workload import support_matrix
from tests.documents import ROOT

TEXT = (ROOT / "README.md").read_text()
WORDS = " ".join(TEXT.split())
MOST_LINES, MOST_WORDS = 120, 1_200


def test_it_is_short():
    assert len(TEXT.splitlines()) <= MOST_LINES and len(TEXT.split()) <= MOST_WORDS


def test_the_picture_is_what_its_command_draws(tmp_path, capsys):
    command, file = re.findall(r"<!-- peakcast (explain .+) --picture (\S+) -->", TEXT)[0]
    main([*shlex.split(command), "--picture", str(tmp_path / "run.svg")])
    assert (ROOT / file).read_text() == (tmp_path / "run.svg").read_text()


def test_rows_of_the_matrix_are_those_of_the_support_matrix():
    engines = support_matrix.page().partition("## Precisions")[0].splitlines()
    rows = [line for line in TEXT.splitlines() if line.startswith(("| feature", "| no feature")) or " yes |" in line]
    assert len(rows) > 5 and [row for row in rows if row not in engines] == []


def test_the_device_total_of_the_calibrated_h200_is_within_what_is_said():
    page = (ROOT / "profiles/pages/device_h200.md").read_text()
    [held_out] = re.findall(r"## Predicted with the profile.*?(?=^## )", page, re.DOTALL | re.MULTILINE)
    worst = re.findall(r"\((\S+)%\)", held_out)[-1]
    said, jobs = re.findall(r"With our H200's profile we predict what nvidia-smi shows within (\S+)% for \[(\d+) jobs\]"
                            r"\(profiles/pages/device_h200.md\)", WORDS)[0]
    assert float(said) - 0.01 < float(worst) <= float(said)
    assert int(jobs) == len([row for row in held_out.splitlines() if " · " in row])


def test_the_rows_of_other_methods_are_those_of_the_evidence():
    evidence = (ROOT / "docs/pages/evidence/index.md").read_text()
    [(jobs, of_deepspeed, cells)] = re.findall(
        r"^\| all (\d+) with a measured peak \(DeepSpeed: (\d+)\) \| <\S+ % \| (.+) \|$", evidence, re.MULTILINE)
    errors = dict(zip(("Eq. 1", "DeepSpeed", "accelerate", "LLMem's states"), cells.replace(" %", "%").split(" | ")))
    rows = re.findall(r"^\| emulated GPU \| training job \| \[?(.+?)(?:\]\(\S+\))? \| (\d+) \|  \|  \|  \| (\d\S+) \|$",
                      TEXT, re.MULTILINE)
    assert {name: error for name, _, error in rows} == errors
    assert all(number == (of_deepspeed if name == "DeepSpeed" else jobs) for name, number, _ in rows)


def test_the_row_of_the_emulated_gpu_is_what_the_report_says():
    report = " ".join((ROOT / "docs/pages/how-to/reports.md").read_text().split())
    lines = (ROOT / "profiles/h100-80gb/device/device-jobs.jsonl").read_text().splitlines()
    real = sum(json.loads(line)["record"] is not None for line in lines)
    cases = int(re.findall(r"predicted moment in (\d+) of", report)[0]) - real
    assert f"| {cases} |  | {cases} of {cases}, +0.000% | {cases} of {cases}, +0.000% |" in TEXT
