"""Activation checkpointing and offloading of layers against transformers itself on the emulated GPU."""

from __future__ import annotations

import pytest

from predictor.common.errors import InputError
from predictor.model import parser
from predictor.model.model_config import ModelConfig
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator, workload
from tests.predictor.small import small_config

LANGUAGE_MODEL = {"gradient_checkpointing_modules": ["*language_model*"]}
ZERO2 = {"zero_stage": 2, "data_parallel_size": 8, "rank": 7}


@needs_emulator
@pytest.mark.usefixtures("formula_cache")
@pytest.mark.parametrize("changes", [
    {"gradient_checkpointing_kwargs": {"every_n_layers": 2}, "recipe": "full"},
    {"gradient_checkpointing_kwargs": {"offload": True}, **ZERO2},
    {"gradient_checkpointing_kwargs": {"offload": True, "use_reentrant": True}, "padding": "right"},
    {"recipe": "full", **LANGUAGE_MODEL, **ZERO2},
], ids=["every-2", "offload-zero2", "offload-reentrant-padded", "language-model-zero2"])
def test_a_measured_job_is_predicted(tmp_path, changes):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", **changes)
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes


def checkpointed(**settings) -> list[str]:
    """Paths of the layers that are recomputed."""
    model = parser.build(ModelConfig("small", small_config()), attn_implementation="sdpa", recipe="full")
    parser.checkpoint(model, use_reentrant=False, **settings)
    return [name for name, module in model.named_modules()
            if getattr(module, "gradient_checkpointing", False) and name.rsplit(".", 1)[-1].isdecimal()]


def test_patterns_choose_the_layers():
    assert len(checkpointed()) == 4
    assert checkpointed(modules=("*language_model*",)) == [f"model.language_model.layers.{number}" for number in (0, 1)]


def test_every_second_layer_is_counted_through_the_whole_model():
    assert [name.rsplit(".", 1)[-1] for name in checkpointed(every_n_layers=2)] == ["0", "0"]


def test_a_pattern_that_matches_no_layer_is_refused():
    with pytest.raises(InputError, match="'\\*audio\\*' matches no layer .for example 'model.vision_tower"):
        checkpointed(modules=("*audio*",))


def test_patterns_without_checkpointing_are_refused(tmp_path):
    with pytest.raises(InputError, match="gradient_checkpointing_modules are named, but gradient_checkpointing is off"):
        workload(tmp_path, gradient_checkpointing=False, **LANGUAGE_MODEL)
