"""``pytest.mark.limit_gpu_memory``: a sample project whose tests run on an emulated GPU, once for all claims."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from calibrate.emulator.job_environment import SETTING
from calibrate.pytest_plugin import Limit
from tests.calibrate.small_jobs import needs_emulator

ROOT = Path(__file__).parents[2]
WIDTH = 4096
WEIGHT_MIB = 4 * WIDTH**2 / 2**20
PROJECT = f"""
import os

import pytest

LIMITED = pytest.mark.limit_gpu_memory("1 GiB", gpu="a100-40gb")


def step():
    import torch

    layer = torch.nn.Linear({WIDTH}, {WIDTH}, bias=False, device="cuda")
    layer(torch.zeros(8, {WIDTH}, device="cuda")).sum().backward()


@LIMITED
@pytest.mark.parametrize("url", ["http://a"])
def test_below(url):
    step()


@pytest.mark.limit_gpu_memory("100 MiB")
def test_above():
    step()


@LIMITED
def test_beyond_the_gpu():
    import torch

    torch.empty(50 << 30, dtype=torch.uint8, device="cuda")


@pytest.fixture
def one():
    return 1


@LIMITED
def test_assertion(one):
    assert one == 2


@LIMITED
def test_skipped():
    pytest.skip("not today")


@pytest.mark.xfail
@pytest.mark.limit_gpu_memory("100 MiB")
def test_expected():
    step()


@pytest.mark.xfail(strict=True, reason="too much")
@pytest.mark.limit_gpu_memory("100 MiB")
def test_expected_strictly():
    step()


@LIMITED
def test_killed():
    os._exit(0)


@pytest.mark.limit_gpu_memory("1 GiB", gpu="a100-40bg")
def test_misspelled():
    pass


def test_unmarked():
    assert "{SETTING}" not in os.environ
"""
"""Only the tests that need torch import it: that takes most of their time."""
UNUSED = "-p no:hypothesispytest -p no:xdist -p no:benchmark"
"""Plugins that these tests do not need: each of their processes would import them."""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> tuple[Path, str]:
    """The folder of the project after its tests ran, and what pytest printed."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_step.py").write_text(PROJECT)
    words = ["-q", "-p", "no:cacheprovider", "--junitxml", "results.xml", "test_step.py"]
    ran = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=folder, env=environment(), text=True,
                         stdout=subprocess.PIPE)
    return folder, ran.stdout


@pytest.fixture(scope="module")
def outcomes(project) -> dict[str, tuple[str, str]]:
    """The outcome of each test of the project, with its message."""
    cases = ElementTree.parse(project[0] / "results.xml").getroot().iter("testcase")
    return {case.get("name", ""): outcome(case) for case in cases}


def environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # xdist's, too
    return ours | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "PYTEST_ADDOPTS": UNUSED}


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            return kind, f"{found.get('message')}\n{found.text}"
    return "passed", ""


@needs_emulator
@pytest.mark.parametrize("name, kind", [
    ("test_below[http://a]", "passed"), ("test_above", "failure"), ("test_beyond_the_gpu", "failure"),
    ("test_assertion", "failure"), ("test_skipped", "skipped"), ("test_expected", "skipped"),
    ("test_expected_strictly", "skipped"), ("test_killed", "failure"),
    ("test_misspelled", "error"), ("test_unmarked", "passed")])
def test_each_test_has_its_own_outcome(name, kind, outcomes):
    assert outcomes[name][0] == kind


@needs_emulator
def test_the_message_says_how_much_was_reserved_and_where(outcomes):
    text = outcomes["test_above"][1]
    assert "over its limit of 100.00 MiB, on an emulated h100-80gb" in text
    assert "peak in backward of step 1: aten::mm, at " in text
    assert f"gradients {WEIGHT_MIB:.2f} MiB" in text


@needs_emulator
def test_pytests_summary_has_one_line_that_says_so(project):
    [line] = [line for line in project[1].splitlines() if line.startswith("FAILED test_step.py::test_above")]
    assert re.fullmatch(r"FAILED test_step.py::test_above - reserved \S+ MiB, over its limit of 100.00 MiB, on an "
                        r"emulated h100-80gb", line)


@needs_emulator
def test_what_no_gpu_has_is_one_line_instead_of_a_traceback(project, outcomes):
    [line] = [line for line in project[1].splitlines() if line.startswith("FAILED test_step.py::test_beyond_the_gpu")]
    assert line.endswith(" - out of memory on an emulated a100-40gb of 39.39 GiB, with a limit of 1.00 GiB: 50.00 GiB more "
                         "were asked for when 0 B were reserved")
    assert "Traceback" not in outcomes["test_beyond_the_gpu"][1]


@needs_emulator
def test_a_failed_assertion_is_shown_as_pytest_shows_it(outcomes):
    assert ">       assert one == 2" in outcomes["test_assertion"][1]


@needs_emulator
def test_a_wrong_mark_says_what_to_write(outcomes):
    assert 'unknown GPU "a100-40bg" (did you mean "a100-40gb"?)' in outcomes["test_misspelled"][1]


@pytest.mark.parametrize("mark, limit", [
    (pytest.mark.limit_gpu_memory("38 GiB", gpu="A100-40GB"), Limit(38 << 30, "a100-40gb")),
    (pytest.mark.limit_gpu_memory(1 << 30), Limit(1 << 30, "h100-80gb"))])
def test_a_limit_is_a_size_and_a_gpu(mark, limit):
    assert Limit.of(mark.mark) == limit


@pytest.mark.parametrize("mark", [
    pytest.mark.limit_gpu_memory, pytest.mark.limit_gpu_memory("38 parsecs"),
    pytest.mark.limit_gpu_memory("60 GiB", gpu="a100-40gb"),
    pytest.mark.limit_gpu_memory("1 GiB", card="a100-40gb")])
def test_any_other_mark_is_an_error_that_shows_a_right_one(mark):
    with pytest.raises(pytest.UsageError, match='write @pytest.mark.limit_gpu_memory'):
        Limit.of(mark.mark)


def test_a_mark_without_a_size_names_itself():
    with pytest.raises(pytest.UsageError, match=r"limit_gpu_memory\(\) missing 1 required positional argument: 'size'"):
        Limit.of(pytest.mark.limit_gpu_memory().mark)
