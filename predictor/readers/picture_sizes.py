"""Sizes of pictures after the limits of training frameworks, which resize them before the model's own processor."""

from __future__ import annotations

import math
from collections.abc import Callable

Resize = Callable[[int, int], tuple[int, int]]
"""Function that gives the (height, width) in pixels of a picture of that height and width."""
SIDES = {"qwen2_vl": 28, "qwen2_5_vl": 28, "qwen3_vl": 32}
"""``model_type`` -> side of an image token in pixels, for models with the variables of qwen_vl_utils (0.0.14)."""
LEAST_TOKENS = 4
"""Image tokens that qwen_vl_utils makes at least of a picture (0.0.14, vision_process.py, ``IMAGE_MIN_TOKEN_NUM``)."""
SHORTEST, MOST_UNEQUAL, LESS_UNEQUAL = 28, 200, 180
"""Of LLaMA-Factory's Qwen2-VL plugin: least pixels of a side, largest ratio of sides, and the ratio in place of it."""


def llamafactory(most: int, least: int, qwen: bool) -> Resize:
    """How LLaMA-Factory resizes: with one factor for both sides, then cut to whole pixels.

    LLaMA-Factory 0.9.5, data/mm_plugin.py, ``MMPluginMixin._preprocess_image``, ``Qwen2VLPlugin._preprocess_image``.

    Args:
        most, least: ``image_max_pixels`` and ``image_min_pixels``.
        qwen: true for Qwen-VL's models.
    """
    def resize(height: int, width: int) -> tuple[int, int]:
        if width * height > most:
            height, width = _scaled(height, width, most)
        if width * height < least:
            height, width = _scaled(height, width, least)
        if qwen and min(width, height) < SHORTEST:
            width, height = max(width, SHORTEST), max(height, SHORTEST)
        if qwen and width / height > MOST_UNEQUAL:
            width = height * LESS_UNEQUAL
        if qwen and height / width > MOST_UNEQUAL:
            height = width * LESS_UNEQUAL
        return height, width

    return resize


def _scaled(height: int, width: int, pixels: int) -> tuple[int, int]:
    factor = math.sqrt(pixels / (width * height))
    return max(1, int(height * factor)), max(1, int(width * factor))


def swift(most: int) -> Resize:
    """How ms-swift resizes for ``max_pixels`` (4.6, template/vision_utils.py, ``rescale_image``)."""
    def resize(height: int, width: int) -> tuple[int, int]:
        if width * height <= most:
            return height, width
        ratio = width / height
        scaled = math.sqrt(most / ratio)
        return max(1, int(scaled)), max(1, int(scaled * ratio))

    return resize


def tokens(most: int, side: int) -> Resize:
    """How Qwen-VL's processors resize: to whole image tokens, in pixels of ``side`` squared.

    transformers 5.17, models/qwen2_vl/image_processing_qwen2_vl.py, ``smart_resize``; so does qwen_vl_utils 0.0.14.

    Args:
        most: the largest number of pixels.
    """
    least = LEAST_TOKENS * side * side

    def resize(height: int, width: int) -> tuple[int, int]:
        rounded = tuple(max(side, round(length / side) * side) for length in (height, width))
        if math.prod(rounded) > most:
            by = math.sqrt(height * width / most)
            return (max(side, math.floor(height / by / side) * side), max(side, math.floor(width / by / side) * side))
        if math.prod(rounded) < least:
            by = math.sqrt(least / (height * width))
            return math.ceil(height * by / side) * side, math.ceil(width * by / side) * side
        return rounded[0], rounded[1]

    return resize


def square(side: int) -> Resize:
    """How axolotl resizes for ``image_size``: into a square, padded (0.19, processing_strategies.py, ``__call__``)."""
    return lambda height, width: (side, side)


def one_after_the_other(*steps: Resize) -> Resize:
    """Several resizes as one."""
    def resize(height: int, width: int) -> tuple[int, int]:
        for step in steps:
            height, width = step(height, width)
        return height, width

    return resize
