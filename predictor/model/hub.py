"""Maps ids of models on the Hugging Face hub to known models, and models to their parts (towers, projector, and so on).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from predictor.common.errors import InputError
from predictor.model import models
from predictor.model.model_config import ModelConfig

ALIASES = {
    "llava-v1.5-7b": "llava-1.5-7b", "llava-v1.5-13b": "llava-1.5-13b", "llava-v1.6-vicuna-7b": "llava-next-vicuna-7b",
    "llava-v1.6-vicuna-13b": "llava-next-vicuna-13b", "llava-v1.6-mistral-7b": "llava-next-mistral-7b",
    "meta-llama-3.1-8b": "llama-3.1-8b", "paligemma-3b-pt-224": "paligemma-3b", "bert-base-uncased": "bert-base",
    "bert-base-cased": "bert-base", "vit-base-patch16-224": "vit-base", "swin-tiny-patch4-window7-224": "swin-tiny",
    "convnext-tiny-224": "convnext-tiny", "mistral-7b-v0.1": "mistral-7b", "mistral-7b-instruct-v0.1": "mistral-7b",
    "mistral-7b-instruct-v0.3": "mistral-7b-v0.3",
}
"""Last part of a hub id, in lower case -> known name, for ids that do not become a known name without a suffix."""
SUFFIXES = ("hf", "instruct", "chat", "base", "it", "pt", "lora", "2409", "2506", "merged")
"""Suffixes of checkpoint names; the checkpoint has the same configuration as the name without the suffix."""
LANGUAGE_MODELS = {"vicuna-7b-v1.5": "llava-1.5-7b", "vicuna-13b-v1.5": "llava-1.5-13b"}
"""Language models of LLaVA-1.5 -> the whole model, with CLIP and a projector of two layers."""
CLIP = "clip-vit-large-patch14-336"


@dataclass(frozen=True)
class Parts:
    """The parts of a model.

    Attributes:
        towers: patterns of the parameters of vision and audio towers, as the key ``frozen`` takes them.
        projector: patterns of the projector's parameters.
        language: patterns of the language model's parameters.
        layers: regular expression of the paths of a tower's linear layers.
        aligner: regular expression of the paths of the projector's linear layers.
    """

    towers: tuple[str, ...]
    projector: tuple[str, ...]
    language: tuple[str, ...]
    layers: str
    aligner: str


_PLAIN = Parts(("*vision_tower*",), ("*multi_modal_projector*",), ("*language_model*", "*lm_head*"), "vision_tower",
               r"multi_modal_projector\.\w+")
_TILES = Parts(_PLAIN.towers, ("*multi_modal_projector*", "*image_newline*"), _PLAIN.language, _PLAIN.layers,
               _PLAIN.aligner)
_CONNECTOR = Parts(("*vision_model*",), ("*connector*",), ("*text_model*", "*lm_head*"), "vision_model",
                   r"connector\..*")
_QWEN = Parts(("*visual.patch_embed*", "*visual.blocks*"), ("*visual.merger*",), ("*language_model*", "*lm_head*"),
              r"visual\.blocks", r"visual\.merger\..*")
_QWEN3 = Parts((*_QWEN.towers, "*visual.pos_embed*"), (*_QWEN.projector, "*visual.deepstack_merger_list*"),
               _QWEN.language, _QWEN.layers, r"visual\.(?:merger|deepstack_merger_list\.\d+)\..*")
_MLLAMA = Parts(("*vision_model*",), _PLAIN.projector, _PLAIN.language, "vision_model", _PLAIN.aligner)
_AUDIO = Parts(("*audio_tower*",), _PLAIN.projector, _PLAIN.language, "audio_tower", _PLAIN.aligner)
PARTS = {
    **dict.fromkeys(("llava", "paligemma", "gemma3", "internvl", "mistral3"), _PLAIN),
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), _TILES),
    **dict.fromkeys(("idefics3", "smolvlm"), _CONNECTOR), **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), _QWEN),
    "qwen3_vl": _QWEN3, "mllama": _MLLAMA, "qwen2_audio": _AUDIO,
}
"""``model_type`` -> the parts of its models."""


def known(name: str) -> str:
    """The known name of a hub id, or of a directory with such a name.

    Known names, paths with a configuration and names of functions are returned unchanged. So are unknown names:
    ``models.find`` reports them.

    Example: ``liuhaotian/llava-v1.5-7b`` and ``./checkpoints/llava-v1.5-7b`` are ``llava-1.5-7b``.
    """
    if os.path.isfile(name) or (Path(name) / "config.json").is_file() or ":" in name:
        return name
    last = _last(name)
    while last:
        candidate = ALIASES.get(last, last)
        if candidate in models.known_names():
            return candidate
        shorter = re.sub(rf"-(?:{'|'.join(SUFFIXES)})$", "", last)
        if shorter == last:
            break
        last = shorter
    return name


def llava(name: str, tower: str | None) -> str:
    """The known name of a model that LLaVA's scripts name by its language model and its vision tower."""
    if tower and is_language_model_of_llava(name) and _last(tower) == CLIP:
        return LANGUAGE_MODELS[_last(name)]
    return known(name)


def is_language_model_of_llava(name: str) -> bool:
    """Whether a name is a bare language model of :data:`LANGUAGE_MODELS`, without a vision tower."""
    return _last(name) in LANGUAGE_MODELS


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def config(name: str) -> ModelConfig | None:
    """The configuration of a model; None if it cannot be read, which ``predict`` reports later."""
    try:
        return models.find(name)
    except InputError:
        return None


def parts(name: str) -> Parts | None:
    """The parts of a model; None if it has no tower or is unknown."""
    model_config = config(name)
    return PARTS.get(model_config.document["model_type"]) if model_config else None


def hidden_size(name: str) -> int | None:
    """The hidden size by which Hugging Face replaces ``auto`` bucket sizes of DeepSpeed; None if the configuration does
    not have it."""
    model_config = config(name)
    document = model_config.document if model_config else {}
    return next((part["hidden_size"] for part in (document, document.get("text_config") or {})
                 if isinstance(part.get("hidden_size"), int)), None)
