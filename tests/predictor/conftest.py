"""Fixtures of more than one file."""

from __future__ import annotations

import json

import pytest

from predictor import store
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
    from predictor import tracing

    found, trace = [], tracing.trace_formula
    monkeypatch.setattr(tracing, "trace_formula", lambda config, key, **rest: found.append(key) or trace(
        config, key, **rest))
    return found
