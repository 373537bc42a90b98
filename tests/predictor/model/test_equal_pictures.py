"""Sizes of pictures that share a formula, against the image processors of transformers."""

from __future__ import annotations

import random

import pytest

from predictor.common.errors import InputError
from predictor.model import models
from predictor.model.equal_pictures import PROCESSORS, of_one_kind
from predictor.model.model_config import ModelConfig
from predictor.trace import image_inputs

MODELS = ("qwen2-vl-2b", "qwen2.5-vl-7b", "qwen3-vl-8b", "internvl3-8b")
random_sizes = random.Random(0)
SIZES = [(random_sizes.randint(20, 900), random_sizes.randint(20, 900)) for _ in range(20)] + [(28, 5000)]


def made(name: str, size: tuple[int, int]) -> list[tuple[int, ...]] | str:
    """What the processor makes of a picture: shapes and grids of its tensors, or that it takes none such."""
    from transformers import CONFIG_MAPPING

    config = models.find(name)
    processor = image_inputs.processor(config, CONFIG_MAPPING[config.document["model_type"]].from_dict(config.document))
    try:
        tensors = image_inputs.processed(processor, [[size]])
    except InputError:
        return "rejected"
    return [tuple(values.shape) if values.is_floating_point() else tuple(values.flatten().tolist())
            for values in tensors.values()]


@pytest.mark.parametrize("name", MODELS)
def test_the_size_that_stands_for_another_makes_the_same_tensors(name):
    for size in SIZES:
        (other,) = of_one_kind(models.find(name), (size,))
        assert made(name, other) == made(name, size), size


@pytest.mark.parametrize("name", MODELS)
def test_a_size_that_stands_for_others_stands_for_itself(name):
    config = models.find(name)
    for size in SIZES:
        found = of_one_kind(config, (size,))
        assert of_one_kind(config, found) == found


def test_pictures_that_become_equal_are_one_size():
    assert of_one_kind(models.find("qwen2.5-vl-7b"), ((448, 588), (450, 590))) == ((448, 588),)
    assert of_one_kind(models.find("qwen2.5-vl-7b"), ((448, 588), (448, 448))) == ((448, 588), (448, 448))


def test_sizes_of_other_models_stay():
    assert "llava_onevision" not in PROCESSORS
    assert of_one_kind(models.find("llava-onevision-qwen2-7b"), ((449, 588),)) == ((449, 588),)


def test_sizes_of_a_model_without_a_configuration_of_its_tower_stay_as_they_are():
    config = ModelConfig("nameless", {"model_type": "qwen3_vl"})
    assert of_one_kind(config, ((100, 100), (101, 101))) == ((100, 100), (101, 101))
