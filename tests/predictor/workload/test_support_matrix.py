"""The table of comparisons points to existing tests and pages, and the page of all combinations is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.workload import compared, support_matrix
from predictor.workload.keys import KEYS

ROOT = Path(__file__).parents[3]
LINES = {**compared.FEATURES, **{f"{name} of a model": line for name, line in compared.MODEL_TYPES.items()},
         "samples": compared.SAMPLES, "courses": compared.COURSES}


@pytest.mark.parametrize("name", LINES)
def test_every_line_points_to_a_comparison_that_exists(name):
    assert LINES[name].evidence
    for pointer in LINES[name].evidence:
        path, mark, inside = pointer.partition("::") if "::" in pointer else pointer.partition("#")
        text = (ROOT / path).read_text()
        wanted = rf"^def {inside}\(" if mark == "::" else rf"^\| {re.escape(inside)} \|" if mark else ""
        assert re.search(wanted, text, re.MULTILINE), pointer


@pytest.mark.parametrize("name", LINES)
def test_a_line_speaks_of_keys_that_exist(name):
    assert {key.partition(".")[0] for key in LINES[name].seen} <= {*KEYS, "model_type"}
    assert LINES[name].says.keys() <= LINES[name].seen.keys()


def test_the_page_is_up_to_date():
    """Otherwise: python scripts/build_support_matrix.py."""
    assert (ROOT / "profiles/pages/support.md").read_text() == support_matrix.page()


@pytest.mark.parametrize("heading, column, row, says", [
    ("Engines", "fsdp2", "quantization", "not yet"), ("Engines", "zero_stage 2", "quantization", "yes"),
    ("Engines", "zero_stage 3", "per_device_eval_batch_size", "not yet"), ("Recipes", "full", "quantization", "–"),
    ("Precisions", "dtype fp16", "use_liger_kernel", "not yet"), ("Engines", "torch", "mode inference", "yes"),
])
def test_a_cell_says_what_a_prediction_would(heading, column, row, says):
    assert support_matrix.cell(support_matrix.ROWS[row], support_matrix.COLUMNS[heading][column]) == says
