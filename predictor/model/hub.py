"""Names of models on the hub, and their parts: which known model a framework's configuration means."""

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
"""Last part of an id, in lower case -> known name, where no suffix leads there."""
SUFFIXES = ("hf", "instruct", "chat", "base", "it", "pt", "lora", "2409", "2506", "merged")
"""Ends of names of checkpoints that have the configuration of the model without."""
LANGUAGE_MODELS = {"vicuna-7b-v1.5": "llava-1.5-7b", "vicuna-13b-v1.5": "llava-1.5-13b"}
"""Language models of LLaVA-1.5 -> the whole, with CLIP and a projector of two layers."""
CLIP = "clip-vit-large-patch14-336"


@dataclass(frozen=True)
class Parts:
    """Patterns of the parameters of a model's parts, as ``frozen`` of a workload takes them; ``towers`` see and hear,
    ``layers`` are regular expressions of paths under which a tower has its linear layers."""

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
"""``model_type`` -> its parts."""


def known(name: str) -> str:
    """The known model that a hub id, or a directory of that name, means; the name itself where it is one, or a path
    with a configuration; any other is given back as it is, for ``models.find`` to say what is wrong with it.

    Example: ``liuhaotian/llava-v1.5-7b`` and ``./checkpoints/llava-v1.5-7b`` are ``llava-1.5-7b``.
    """
    if os.path.isfile(name) or (Path(name) / "config.json").is_file() or ":" in name:
        return name
    last = _last(name)
    while last:
        found = ALIASES.get(last, last)
        if found in models.known_names():
            return found
        shorter = re.sub(rf"-(?:{'|'.join(SUFFIXES)})$", "", last)
        if shorter == last:
            break
        last = shorter
    return name


def llava(name: str, tower: str | None) -> str:
    """The known model of a language model with CLIP and a projector of two layers, as LLaVA's scripts name them."""
    if tower and is_language_model_of_llava(name) and _last(tower) == CLIP:
        return LANGUAGE_MODELS[_last(name)]
    return known(name)


def is_language_model_of_llava(name: str) -> bool:
    """Whether it is one of :data:`LANGUAGE_MODELS`, alone."""
    return _last(name) in LANGUAGE_MODELS


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def config(name: str) -> ModelConfig | None:
    """The configuration of a model; None where there is none to read, which ``predict`` will say."""
    try:
        return models.find(name)
    except InputError:
        return None


def parts(name: str) -> Parts | None:
    """The parts of a model; None for one without a tower, or not known."""
    found = config(name)
    return PARTS.get(found.document["model_type"]) if found else None


def hidden_size(name: str) -> int | None:
    """What Hugging Face fills "auto" buckets by, as far as the configuration says it."""
    found = config(name)
    text = found.document.get("text_config") if found else None
    return next((part["hidden_size"] for part in (found.document if found else {}, text or {})
                 if isinstance(part.get("hidden_size"), int)), None)
