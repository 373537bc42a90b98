"""Pictures whose size an option gives are resized as each framework resizes them before the model's processor."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import readers
from predictor.cli import Parser
from predictor.commands import options
from predictor.readers import picture_sizes

SIDES = st.integers(1, 8_000)
LIMITS = st.integers(4 * 32 * 32, 1 << 22)
QWEN, LLAVA_NEXT = "Qwen/Qwen2.5-VL-7B-Instruct", "llava-hf/llava-v1.6-mistral-7b-hf"


class Picture:
    """A picture with the attributes of PIL's that the frameworks read."""

    def __init__(self, width, height):
        self.width, self.height = width, height

    def resize(self, size):
        return Picture(*(max(1, side) for side in size))


def as_llamafactory(image, image_max_pixels, image_min_pixels):
    """The statements of LLaMA-Factory 0.9.5, data/mm_plugin.py, MMPluginMixin and Qwen2VLPlugin, _preprocess_image."""
    if (image.width * image.height) > image_max_pixels:
        resize_factor = math.sqrt(image_max_pixels / (image.width * image.height))
        image = image.resize((int(image.width * resize_factor), int(image.height * resize_factor)))
    if (image.width * image.height) < image_min_pixels:
        resize_factor = math.sqrt(image_min_pixels / (image.width * image.height))
        image = image.resize((int(image.width * resize_factor), int(image.height * resize_factor)))
    if min(image.width, image.height) < 28:
        image = image.resize((max(image.width, 28), max(image.height, 28)))
    if image.width / image.height > 200:
        image = image.resize((image.height * 180, image.height))
    if image.height / image.width > 200:
        image = image.resize((image.width, image.width * 180))
    return image.height, image.width


@given(SIDES, SIDES, LIMITS, st.integers(1, 4096))
def test_llamafactory_keeps_the_ratio_of_sides(height, width, most, least):
    assert picture_sizes.llamafactory(most, least, True)(height, width) == as_llamafactory(Picture(width, height), most, least)
    made = picture_sizes.llamafactory(most, 1, False)(height, width)
    assert math.prod(made) <= most or made == (height, width) or 1 in made


@given(SIDES, SIDES, LIMITS)
def test_ms_swift_keeps_the_ratio_of_sides(height, width, most):
    made = picture_sizes.swift(most)(height, width)
    if width * height <= most:
        assert made == (height, width)
    else:  # swift/template/vision_utils.py, rescale_image
        scaled = math.sqrt(most / (width / height))
        assert made == (max(1, int(scaled)), max(1, int(scaled * (width / height))))


@settings(deadline=None)
@given(SIDES, SIDES, LIMITS, st.sampled_from([28, 32]))
def test_a_limit_of_tokens_is_transformers_own(height, width, most, side):
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    if max(height, width) / min(height, width) > 200 or min(height, width) < side:
        return  # transformers stops, or makes an empty picture that it then cannot use
    assert picture_sizes.tokens(most, side)(height, width) == module.smart_resize(height, width, side, 4 * side * side, most)


def given_for(directory, keys, *words, form=None):
    (directory / "job.yaml").write_text(yaml.safe_dump(keys))
    parser = Parser(allow_abbrev=False)
    options.add_workload(parser)
    options.add_from(parser)
    return options.given(parser.parse_known_args(["--from", str(directory / "job.yaml"), "--from-format", form, *words])[0])


LLAMAFACTORY = {"model_name_or_path": QWEN, "finetuning_type": "lora", "bf16": True, "cutoff_len": 4096}
SWIFT = {"model": QWEN, "tuner_type": "lora", "max_length": 4096}
AXOLOTL = {"base_model": QWEN, "sequence_len": 4096, "bf16": True, "adapter": "lora", "lora_r": 8, "lora_alpha": 8, "lora_target_linear": True}


@pytest.mark.parametrize("form, keys, size, made", [
    ("llamafactory", LLAMAFACTORY, "1024x2048", "543x1086"), ("llamafactory", LLAMAFACTORY, "512x600", "512x600"),
    ("llamafactory", LLAMAFACTORY | {"image_max_pixels": 262144}, "1024x2048,300", "362x724,300"),
    ("llamafactory", LLAMAFACTORY | {"model_name_or_path": LLAVA_NEXT}, "1024x2048", "543x1086"),
    ("swift", SWIFT | {"max_pixels": 1003520}, "1024x2048", "708x1416"), ("swift", SWIFT, "1024x2048", "1024x2048"),
    ("swift", SWIFT | {"model_kwargs": {"max_pixels": 1003520}}, "1024x2048", "700x1400"),
    ("axolotl", AXOLOTL | {"image_size": 512}, "1024x2048", 512),
    ("axolotl", AXOLOTL | {"processor_kwargs": {"max_pixels": 1003520}}, "1024x2048", "700x1400")])
def test_the_size_that_an_option_gives_is_that_before_the_frameworks_limit(form, keys, size, made, tmp_path):
    found = given_for(tmp_path, keys, "--image-size", size, form=form)
    assert found.values["image_size"] == made
    row = next((row for row in found.source.values if row.key == "image_size"), None)
    if made == size:
        assert row is None or row.origin == "overridden"
    else:
        assert row.origin in ("read", "default") and f"{size} of --image-size, as " in row.because


def test_frames_of_a_video_have_other_limits(tmp_path):
    found = given_for(tmp_path, LLAMAFACTORY, "--image-size", "1024x2048", "--video-frames", "8", form="llamafactory")
    assert found.values["image_size"] == "1024x2048"


def test_the_default_limit_is_the_frameworks(tmp_path):
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(LLAMAFACTORY))
    values, source = readers.read(path=str(tmp_path / "job.yaml"), options={"image_size": 4096})
    assert values["image_size"] == 768 and source.applied == {"image_size"}
