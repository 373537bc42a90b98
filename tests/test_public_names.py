"""The public names: what editors and careless calls get from them."""

from __future__ import annotations

import inspect

import pytest

from predictor import Workload, predict
from predictor.workload.keys import KEYS


def test_the_signature_of_a_workload_lists_its_keys():
    assert list(inspect.signature(Workload).parameters) == list(KEYS)


def test_a_workload_takes_keywords_only():
    with pytest.raises(TypeError, match="keywords only"):
        Workload("llava-1.5-7b")


def test_a_prediction_is_of_a_workload():
    with pytest.raises(TypeError, match="takes a Workload, not dict"):
        predict({"model": "llava-1.5-7b"})
