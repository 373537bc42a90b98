"""Facts that follow from a configuration alone."""

from __future__ import annotations

import pytest

from predictor.model.model_config import ModelConfig


@pytest.mark.parametrize(("document", "positions"), [
    ({"max_position_embeddings": 4096}, 4096),
    ({"n_positions": 128}, 128),
    ({"text_config": {"max_position_embeddings": 32}, "max_position_embeddings": 64}, 32),
    ({"text_config": {}, "max_position_embeddings": 64}, None),
    ({"max_position_embeddings": "many", "n_positions": None}, None),
    ({}, None),
])
def test_positions_are_those_of_the_language_model(document, positions):
    assert ModelConfig("x", document).positions == positions
