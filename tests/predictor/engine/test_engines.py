"""An engine is one line in each of two tables; no other code depends on its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.job.engines import ENGINES as REAL
from predictor.engine.engines import IMPLEMENTATIONS, load
from predictor.workload import engines

MADE_UP = """
from predictor.engine.engines import IMPLEMENTATIONS
from predictor.workload.engines import ENGINES, Entry
ENGINES["made_up"] = Entry(notes=("that it is made up",))
IMPLEMENTATIONS["made_up"] = "predictor.engine.torch_loop.TorchLoop"

from predictor import Workload, predict
from predictor.common.errors import InputError

keys = {"model": "llava-1.5-7b", "recipe": "pretrain", "sequence_length": 1024, "per_device_train_batch_size": 4}
plain, answer = (predict(Workload(**keys, engine=engine, profile="none")) for engine in ("torch", "made_up"))
assert answer.allocated == plain.allocated and answer.frozen_bytes == plain.frozen_bytes > 0
assert "that it is made up" in answer.not_modelled
try:
    predict(Workload(**keys, engine="made_up", use_liger_kernel=True))
except InputError as error:
    print(error)
"""


def test_a_line_in_each_of_the_two_tables_makes_an_engine():
    done = subprocess.run([sys.executable, "-c", MADE_UP], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])})
    assert done.stderr == "" and done.stdout == (
        "use_liger_kernel True: not predicted with engine made_up yet: leave one of them out, or use peakcast learn\n")


def test_every_engine_that_can_be_asked_for_can_be_measured():
    assert set(engines.choices()) == set(REAL)


def test_the_two_tables_have_the_same_engines():
    assert engines.ENGINES.keys() == IMPLEMENTATIONS.keys()


@pytest.mark.parametrize("name", engines.ENGINES)
def test_every_line_names_a_class_with_what_an_engine_has(name):
    made = load(name)
    assert callable(made.rank) and callable(made.peaks) and isinstance(made.depends_on_capacity, bool)
