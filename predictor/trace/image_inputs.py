"""Inputs for images and videos: pixels and accompanying tensors, made by the model's own processor in transformers.

The processor's settings come from ``preprocessor_config.json`` beside the model's configuration. Without that file they
follow from the configuration itself, as in published models.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch

from predictor.common.errors import InputError, NotPredicted
from predictor.common.installing import pip_install
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
    return {"size": {"height": height, "width": width}}


def _idefics3(config) -> dict[str, Any]:
    side = config.vision_config.image_size
    return {"size": {"longest_edge": 4 * side}, "max_image_size": {"longest_edge": side}}


def _pixtral(config) -> dict[str, Any]:
    return {"size": {"longest_edge": config.vision_config.image_size}}


def _mllama(config) -> dict[str, Any]:
    vision = config.vision_config
    return {"size": _square(vision.image_size), "max_image_tiles": vision.max_num_tiles}


def _gemma4(config) -> dict[str, Any]:
    vision = config.vision_config
    return {"patch_size": vision.patch_size, "pooling_kernel_size": vision.pooling_kernel_size,
            "max_soft_tokens": config.vision_soft_tokens_per_image}


def _of_tower(config) -> dict[str, Any]:
    return {"size": _square(config.vision_config.image_size)}


SETTINGS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "qwen2_vl": _qwen, "qwen2_5_vl": _qwen, "qwen3_vl": _qwen, "qwen3_vl_moe": _qwen, "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen, "qwen2_5_omni_thinker": _qwen, "glm4v": _qwen, "glm4v_moe": _qwen, "glm46v": _qwen,
    "llava_next": _tiles, "llava_next_video": _tiles, "llava_onevision": _onevision, "internvl": _internvl,
    "idefics3": _idefics3, "smolvlm": _idefics3, "llava": _pixtral, "mistral3": _pixtral, "mllama": _mllama,
    "gemma4": _gemma4, **dict.fromkeys(("aya_vision", "deepseek_vl", "janus", "llama4"), _of_tower),
}
"""``model_type`` -> a function that derives the image processor's settings from the model's configuration."""


def _cropped(config) -> dict[str, Any]:
    return {"crop_to_patches": True}


def _merged_patches(config) -> dict[str, Any]:
    return {"patch_size": _square(config.vision_config.patch_size * getattr(config, "spatial_merge_size", 1))}


CALLED_WITH: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "internvl": _cropped, "aya_vision": _cropped, "llava": _merged_patches, "mistral3": _merged_patches,
}
"""``model_type`` -> a function that derives the settings with which the model's processor calls its image processor,
whatever ``preprocessor_config.json`` says (transformers 5.17, their processing files; LLaVA with Pixtral's tower)."""
VIDEO_SETTINGS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "qwen2_vl": _qwen, "qwen2_5_vl": _qwen, "qwen3_vl": _qwen, "qwen3_vl_moe": _qwen,
    "llava_next_video": lambda config: {"size": {"shortest_edge": config.vision_config.image_size},
                                        "crop_size": _square(config.vision_config.image_size)},
}
"""``model_type`` -> a function that derives the video processor's settings from the model's configuration."""


SHARED = {"qwen3_vl_moe": "qwen3_vl", "glm4v_moe": "glm4v", "qwen2_5_omni_thinker": "qwen2_5_omni"}
"""``model_type`` that transformers' table of processors lacks -> the one whose processor its published models name in
their ``preprocessor_config.json``."""


def processor(config: ModelConfig, hf_config):
    """The model's image processor.

    Args:
        config: the model's configuration.
        hf_config: the same configuration as an object of transformers.

    Raises:
        InputError: transformers has no processor for the model, its settings are unknown, or it needs a package that is
            not installed.
    """
    from transformers.models.auto import image_processing_auto

    names = image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]  # completed in that file
    name = config.document["model_type"]
    tower = getattr(hf_config.vision_config, "model_type", "")
    backends = names.get(tower if name == "llava" else SHARED.get(name, name)) or names.get(name) or {}
    if isinstance(backends, tuple):  # until 5.0 the slow class, which reads pictures with PIL, comes first
        backends = {"pil": backends[0]}
    processor_class = backends.get("pil") or backends.get("torchvision")
    if not processor_class:
        raise InputError(f"model {config.name}: transformers has no image processor for model_type {name}")
    if name not in SETTINGS and not config.preprocessor:
        raise InputError(f"model {config.name}: for model_type {name}, config.json does not say how images are "
                         "preprocessed: put the model's preprocessor_config.json beside it")
    settings = SETTINGS.get(name, lambda _: {})(hf_config)
    settings |= {key: value for key, value in config.preprocessor.items() if key != "video"}
    settings |= CALLED_WITH.get(name, lambda _: {})(hf_config)
    try:
        return _build(getattr(importlib.import_module("transformers"), processor_class), settings)
    except ImportError as error:
        missing = error.name or "torchvision or pillow"
        raise InputError(f"model {config.name}: its image processor needs {missing}: "
                         f"{pip_install('peakcast[trace]')}") from None


def _build(processor_class: Any, settings: dict[str, Any]):
    """A processor with its own copy of ``size``.

    Without the copy, Qwen's processors write ``max_pixels`` into the ``size`` of their class (transformers 5.17,
    models/qwen2_vl/image_processing_pil_qwen2_vl.py), and every later processor has it.
    """
    size = {"size": copy(processor_class.size)} if hasattr(processor_class, "size") else {}
    return processor_class(**size | settings)


def processed(image_processor, samples: list[list[tuple[int, int]]]) -> dict[str, torch.Tensor]:
    """The model's inputs for images: the processor's tensors, by name.

    Args:
        image_processor: as :func:`processor` returns it.
        samples: height and width in pixels of each image of each sample.

    Raises:
        InputError: the processor cannot take an image of such a size.
    """
    import numpy as np

    gray = {size: np.full((*size, 3), 128, dtype=np.uint8) for sizes in samples for size in sizes}
    images = [[gray[size] for size in sizes] for sizes in samples if sizes]
    try:
        tensors = image_processor(images, return_tensors="pt")
    except (ValueError, TypeError, ZeroDivisionError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        sizes = ", ".join(sorted({f"{height}x{width}" for sizes in samples for height, width in sizes}))
        raise InputError(f"image_size: the model cannot take images of {sizes} ({reason}): give another size with "
                         "--image-size") from None
    return {name: values for name, values in tensors.items() if isinstance(values, torch.Tensor)}


def videos(config: ModelConfig, hf_config, number: int, frames: int, size: tuple[int, int] | None) -> dict:
    """The model's inputs for ``number`` videos: the processor's tensors, by name, with the pixels on meta.

    Args:
        frames: frames of each video.
        size: height and width of a frame in pixels; None: the size that the vision tower takes.

    Raises:
        InputError: torchvision is missing, videos of the model are not predicted, no size was given for a model that
            takes any size, or the processor cannot take such a video.
    """
    from transformers.models.auto import video_processing_auto

    names = video_processing_auto.VIDEO_PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]  # completed in that file
    name, side = config.document["model_type"], getattr(hf_config.vision_config, "image_size", None)
    if size is None and not isinstance(side, int):
        raise InputError(f"image_size is not given: {config.name} takes videos of any size: give one with "
                         "--image-size, such as 480x640 (height x width)")
    if name not in VIDEO_SETTINGS:
        raise NotPredicted(f"video_frames {frames}: videos of model_type {name} are not predicted yet; leave it out")
    if importlib.util.find_spec("torchvision") is None:
        raise InputError(f"video_frames {frames}: transformers' video processors need torchvision: "
                         f"{pip_install('torchvision')}")
    settings = VIDEO_SETTINGS[name](hf_config)
    if "merge_size" in settings:
        settings |= config.preprocessor.get("video", config.preprocessor)
    settings |= dict.fromkeys(("do_sample_frames", "do_convert_rgb", "do_rescale", "do_normalize"), False)
    video_processor = _build(getattr(importlib.import_module("transformers"), names[name]), settings)
    video = torch.empty(frames, 3, *(size or (side, side)), dtype=torch.uint8, device="meta")
    try:
        tensors = video_processor([video] * number, return_tensors="pt")
    except (ValueError, TypeError, ZeroDivisionError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"video_frames: {config.name} cannot take videos of {frames} frames ({reason})") from None
    return {name: values for name, values in tensors.items() if isinstance(values, torch.Tensor)}
