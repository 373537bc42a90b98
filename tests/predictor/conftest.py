"""Fixtures of the predictor's tests."""

from __future__ import annotations

import json

import pytest

from predictor import readers
from predictor.formula import store
from tests.predictor.generating import MODELS


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> dict[str, str]:
    """The small models of inference: name to path."""
    def path(document: dict) -> str:
        made = tmp_path_factory.mktemp("model") / "config.json"
        made.write_text(json.dumps(document))
        return str(made)

    return {name: path(document) for name, document in MODELS.items()}


@pytest.fixture
def seen(monkeypatch) -> list[store.Key]:
    """Keys that are traced."""
    from predictor.formula import tracing

    found, trace = [], tracing.trace_formula
    monkeypatch.setattr(tracing, "trace_formula", lambda config, key, **rest: found.append(key) or trace(
        config, key, **rest))
    return found


@pytest.fixture
def read(tmp_path):
    """Reads keys as those of a configuration file, with options of ours."""
    def reads(keys: dict, name: str = "job.json", **options):
        (tmp_path / name).write_text(json.dumps(keys))
        return readers.read(path=str(tmp_path / name), options=options)
    return reads
