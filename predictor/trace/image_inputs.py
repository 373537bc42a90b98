"""What a model's own image processor makes of a picture: pixels, and what else goes with them into the model.

Processors are transformers'. Their settings come from ``preprocessor_config.json`` beside the model's configuration;
without one from the configuration itself, as published models have them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch

from predictor.common.errors import InputError
from predictor.model.model_config import ModelConfig


def _square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


def _qwen(config) -> dict[str, Any]:
    vision = config.vision_config
    return {"patch_size": vision.patch_size, "temporal_patch_size": vision.temporal_patch_size,
            "merge_size": vision.spatial_merge_size}


def _tiles(config) -> dict[str, Any]:
    side = config.vision_config.image_size
    return {"size": {"shortest_edge": side}, "crop_size": _square(side),
            "image_grid_pinpoints": config.image_grid_pinpoints}


def _onevision(config) -> dict[str, Any]:
    return {"size": _square(config.vision_config.image_size), "image_grid_pinpoints": config.image_grid_pinpoints}


def _internvl(config) -> dict[str, Any]:
    height, width = config.vision_config.image_size
    return {"size": {"height": height, "width": width}, "crop_to_patches": True}


def _idefics3(config) -> dict[str, Any]:
    side = config.vision_config.image_size
    return {"size": {"longest_edge": 4 * side}, "max_image_size": {"longest_edge": side}}


def _pixtral(config) -> dict[str, Any]:
    vision = config.vision_config
    merged = vision.patch_size * getattr(config, "spatial_merge_size", 1)
    return {"size": {"longest_edge": vision.image_size}, "patch_size": _square(merged)}


def _mllama(config) -> dict[str, Any]:
    vision = config.vision_config
    return {"size": _square(vision.image_size), "max_image_tiles": vision.max_num_tiles}


SETTINGS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "qwen2_vl": _qwen, "qwen2_5_vl": _qwen, "qwen3_vl": _qwen, "qwen3_vl_moe": _qwen, "glm4v": _qwen,
    "llava_next": _tiles, "llava_next_video": _tiles, "llava_onevision": _onevision, "internvl": _internvl,
    "idefics3": _idefics3, "smolvlm": _idefics3, "llava": _pixtral, "mistral3": _pixtral, "mllama": _mllama,
}
"""``model_type`` -> settings of its processor that follow from the model's configuration."""
VIDEO_SETTINGS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "qwen2_vl": _qwen, "qwen2_5_vl": _qwen, "qwen3_vl": _qwen, "qwen3_vl_moe": _qwen,
    "llava_next_video": lambda config: {"size": {"shortest_edge": config.vision_config.image_size},
                                        "crop_size": _square(config.vision_config.image_size)},
}
"""The same for videos."""


def processor(config: ModelConfig, hf_config):
    """The model's own.

    Args:
        config: where the model's configuration came from.
        hf_config: the same, as transformers has it.

    Raises:
        InputError: transformers has none, or one that needs what is not installed.
    """
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as NAMES

    name = config.document["model_type"]
    tower = getattr(hf_config.vision_config, "model_type", "")
    kinds = NAMES.get(tower if name == "llava" else name) or NAMES.get(name) or {}
    if "pil" not in kinds:
        raise InputError(f"model {config.name}: transformers has no image processor for model_type {name}")
    if name not in SETTINGS and not config.preprocessor:
        raise InputError(f"model {config.name}: no config.json of model_type {name} says how its pictures are cut: put "
                         "its preprocessor_config.json beside it")
    settings = SETTINGS.get(name, lambda _: {})(hf_config)
    settings |= {key: value for key, value in config.preprocessor.items() if key != "video"}
    try:
        return _made(getattr(importlib.import_module("transformers"), kinds["pil"]), settings)
    except ImportError as error:
        missing = error.name or "torchvision or pillow"
        raise InputError(f"model {config.name}: its image processor needs {missing}: pip install "
                         "'peakcast[trace]'") from None


def _made(kind: type, settings: Mapping[str, Any]):
    """A processor with a ``size`` of its own: Qwen's write ``max_pixels`` into their class's (transformers 5.17,
    models/qwen2_vl/image_processing_pil_qwen2_vl.py), and every later one has it."""
    return kind(**{"size": copy(kind.size)} | settings)


def processed(made, samples: list[list[tuple[int, int]]]) -> dict[str, torch.Tensor]:
    """What goes into the model for pictures.

    Args:
        made: by :func:`processor`.
        samples: height and width in pixels of each picture of each sample.

    Returns:
        The processor's tensors, by name.

    Raises:
        InputError: it does not take such a picture.
    """
    import numpy as np

    gray = {size: np.full((*size, 3), 128, dtype=np.uint8) for sizes in samples for size in sizes}
    given = [[gray[size] for size in sizes] for sizes in samples if sizes]
    try:
        found = made(given, return_tensors="pt")
    except (ValueError, TypeError, ZeroDivisionError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        sizes = ", ".join(sorted({f"{height}x{width}" for sizes in samples for height, width in sizes}))
        raise InputError(f"image_size: the model cannot take pictures of {sizes} ({reason}): give others by "
                         "--image-size") from None
    return {name: values for name, values in found.items() if isinstance(values, torch.Tensor)}


def videos(config: ModelConfig, hf_config, number: int, frames: int, size: tuple[int, int] | None) -> dict:
    """What goes into the model for so many videos of one size: the processor's tensors, by name, pixels on meta.

    Raises:
        InputError: torchvision, or a processor for the model, is missing, or no size was given and none follows.
    """
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES as NAMES

    name, side = config.document["model_type"], getattr(hf_config.vision_config, "image_size", None)
    if size is None and not isinstance(side, int):
        raise InputError(f"image_size is not given: {config.name} takes videos of any size: say which by --image-size, "
                         "such as 480x640 (height x width)")
    if name not in VIDEO_SETTINGS:
        raise InputError(f"video_frames {frames}: videos of model_type {name} are not predicted yet; leave it out")
    if importlib.util.find_spec("torchvision") is None:
        raise InputError(f"video_frames {frames}: transformers' video processors need torchvision: pip install it")
    settings = VIDEO_SETTINGS[name](hf_config)
    if "merge_size" in settings:
        settings |= config.preprocessor.get("video", config.preprocessor)
    settings |= dict.fromkeys(("do_sample_frames", "do_convert_rgb", "do_rescale", "do_normalize"), False)
    made_by = _made(getattr(importlib.import_module("transformers"), NAMES[name]), settings)
    picture = torch.empty(frames, 3, *(size or (side, side)), dtype=torch.uint8, device="meta")
    try:
        made = made_by([picture] * number, return_tensors="pt")
    except (ValueError, TypeError, ZeroDivisionError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"video_frames: {config.name} cannot take videos of {frames} frames ({reason})") from None
    return {name: values for name, values in made.items() if isinstance(values, torch.Tensor)}
