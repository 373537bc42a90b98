"""The workflow that builds the wheel does what the page of releases says, and its prediction fits without a trace."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from predictor import cli
from predictor.formula import store
from tests.documents import ROOT

JOBS = yaml.safe_load((ROOT / ".github/workflows/wheel.yml").read_text())["jobs"]
RELEASING = (ROOT / "docs/pages/reference/releasing.md").read_text()


def commands(job: str) -> list[str]:
    return [line for step in JOBS[job]["steps"] for line in step.get("run", "").splitlines()]


def test_the_page_of_releases_has_the_commands_of_the_workflow():
    [shown] = re.findall(r"^   ```text\n(.*?)^   ```", RELEASING, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in shown.splitlines()]
    assert len(lines) == 3 and set(lines) <= {*commands("build"), *commands("try")}


def test_the_limit_of_the_wheel_is_that_of_the_page():
    [megabytes] = re.findall(r"below (\d+) MB", RELEASING)
    assert any(f"-lt {megabytes}000000" in line for line in commands("build"))


def test_the_wheel_is_tried_without_the_repository():
    assert not any("checkout" in step.get("uses", "") for step in JOBS["try"]["steps"])


@pytest.mark.parametrize("program", ["uvx", "pipx"])
def test_the_prediction_fits_and_needs_no_trace(program, capsys):
    [line] = [line for line in commands("try") if shlex.split(line)[0] == program]
    words = shlex.split(line.partition(" peakcast ")[2])
    with store.existing_only():
        assert cli.main(words) == 0
