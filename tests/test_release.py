"""Files and imports of release 0.1.0 still work; the files are in data/release-0.1.0."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import calibrate
import predictor
from calibrate.records import record as records
from predictor import Workload, predict
from predictor.formula import tracing

RELEASE = Path(__file__).parent / "data/release-0.1.0"


@pytest.fixture
def model(tmp_path, monkeypatch) -> str:
    """A model whose formulas are in the cache; none is traced."""
    shutil.copytree(RELEASE / "formulas", tmp_path / "cache/formulas")
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tracing, "trace_formula", lambda *_, **__: pytest.fail("a formula was traced"))
    (tmp_path / "tiny").mkdir()
    shutil.copy(RELEASE / "config.json", tmp_path / "tiny")
    return str(tmp_path / "tiny")


@pytest.mark.parametrize("keys, requested_bytes, reserved_bytes", [
    ({"zero_stage": 2, "data_parallel_size": 2}, 70_771_164, 71_303_168),
    ({"mode": "inference", "max_new_tokens": 8}, 35_042_192, 35_651_584),
], ids=["training", "inference"])
def test_a_formula_in_the_cache_answers(model, keys, requested_bytes, reserved_bytes):
    prediction = predict(Workload(model=model, sequence_length=64, gpu="h100-80gb", profile="none", **keys)).to_json()
    assert (prediction["peak_requested_bytes"], prediction["peak_reserved_bytes"]) == (requested_bytes, reserved_bytes)


def test_a_learned_formula_answers():
    prediction = predict(Workload(model=str(RELEASE / "learned.npz"), sequence_length=128,
                                  per_device_train_batch_size=8, gpu="h100-80gb")).to_json()
    assert (prediction["peak_requested_bytes"], prediction["peak_reserved_bytes"]) == (74_823_316, 96_468_992)


def test_a_record_is_read():
    record = records.read(RELEASE / "record.json")
    assert record.workload["sequence_length"] == 64 and record.peak("requested_bytes").bytes == 70_373_100


def test_public_names_are_where_they_were():
    assert all(hasattr(predictor, name) for name in ("Workload", "predict"))
    assert all(hasattr(calibrate, name) for name in ("PeakcastCallback", "watch"))
