"""The public names: what editors, type checkers and careless calls get from them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from predictor import Workload, predict
from predictor.workload.keys import KEYS

ROOT = Path(__file__).parents[1]


def test_type_checkers_know_the_public_names(tmp_path):
    (tmp_path / "user.py").write_text("from predictor import Workload, predict\n"
                                      "predict(Workload(model='m')).peak_allocatd_bytes\n")
    # an editable installation is found through a hook that type checkers do not run
    done = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports=silent", "user.py"], cwd=tmp_path,
                          env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True)
    assert '"Prediction" has no attribute "peak_allocatd_bytes"' in done.stdout


def test_the_signature_of_a_workload_lists_its_keys():
    assert list(inspect.signature(Workload).parameters) == list(KEYS)


def test_a_workload_takes_keywords_only():
    with pytest.raises(TypeError, match="keywords only"):
        Workload("llava-1.5-7b")


def test_a_prediction_is_of_a_workload():
    with pytest.raises(TypeError, match="takes a Workload, not dict"):
        predict({"model": "llava-1.5-7b"})
