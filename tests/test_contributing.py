"""CONTRIBUTING.md is short, its drawing has every package in order, and its names and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import conftest
from tests.test_layers import PACKAGES, layers

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
MOST_LINES, MOST_COLUMNS = 156, 110


def test_it_fits_on_one_page():
    lines = TEXT.splitlines()
    assert len(lines) <= MOST_LINES and max(map(len, lines)) <= MOST_COLUMNS


@pytest.mark.parametrize("package", PACKAGES)
def test_the_drawing_has_every_package_in_the_order_of_the_layers(package):
    tree = TEXT.partition(f"\n{package}/ ")[2].partition("\n\n")[0].partition("```")[0]
    assert re.findall(r"^  (\w+)(?:/|\.py) ", tree, re.MULTILINE) == layers(package)


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) > 10 and [link for link in links if not (ROOT / link).exists()] == []


def test_every_file_in_code_exists():
    paths = re.findall(r"[\s`(]((?:predictor|calibrate|tests|scripts|profiles)/[\w/.-]+)", TEXT)
    assert [path for path in paths if not (ROOT / path.rstrip(".")).exists()] == []


@pytest.mark.parametrize("file, name", [
    ("predictor/engine/engines.py", "IMPLEMENTATIONS = {"), ("predictor/workload/engines.py", "ENGINES: "),
    ("predictor/workload/compared.py", "OF_ENGINES: "), ("predictor/workload/compared.py", "BF16"),
    ("calibrate/job/engines.py", "ENGINES"), ("predictor/trace/operators/__init__.py", "TABLE: "),
    ("predictor/workload/optimizers.py", "OPTIMIZERS: "), ("predictor/engine/optimizer.py", "UPDATES: "),
    ("predictor/readers/__init__.py", "FORMATS = {"), ("calibrate/checks/registry.py", "CHECKS = {"),
    ("predictor/formula/store.py", "TRACER_VERSION = "), ("predictor/engine/elementwise.py", "class RMSprop("),
    ("predictor/workload/optimizers.py", '"lion_8bit": _blockwise("Lion", optim_bits=8, is_paged=False),'),
    ("predictor/engine/optimizer.py", '"bitsandbytes.optim.Lion": _blockwise(states=1),'),
    ("predictor/readers/llava.py", '"model_max_length": copied_to("sequence_length", hf.LENGTH, 512),'),
    ("predictor/trace/operators/norms.py", "call.results_and_temporaries(*copies(*call.args[:2]))"),
    ("predictor/events/workspaces.py", "FUNCTIONS = {"), ("predictor/workload/optimizers.py", "LATER = "),
])
def test_names_and_examples_are_in_the_code(file, name):
    assert name in (ROOT / file).read_text()
    assert re.match(r"\w+", name.removeprefix("class ").lstrip('"')).group() in TEXT


def test_every_quick_file_exists():
    assert [entry for entry in conftest.QUICK if not (conftest.HERE / entry).exists()] == []
