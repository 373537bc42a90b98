"""Maps ids of models on the Hugging Face hub to known models, and models to their parts (towers, projector, and so on).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from predictor.common.errors import InputError
from predictor.model import hub_ids, models
from predictor.model.hub_ids import last
from predictor.model.model_config import ModelConfig

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
_QWEN_OMNI = Parts((*_QWEN.towers, "*audio_tower*"), _QWEN.projector, ("model.*", "*lm_head*"),
                   r"(?:visual\.blocks|audio_tower)", _QWEN.aligner)
_GLM = Parts((*_QWEN.towers, "*visual.embeddings*", "*visual.post_*", "*visual.downsample*"), _QWEN.projector,
             _QWEN.language, _QWEN.layers, _QWEN.aligner)
_DEEPSEEK = Parts(("*vision_model*", "*high_res_vision_neck*", "*high_res_vision_proj*"), ("*aligner*",),
                  _PLAIN.language, "vision_model", r"aligner\..*")
_JANUS = Parts(("*vision_model*",), _DEEPSEEK.projector, _PLAIN.language, _DEEPSEEK.layers, _DEEPSEEK.aligner)
_GEMMA4 = Parts((*_PLAIN.towers, "*audio_tower*"), ("*embed_vision*", "*embed_audio*"), _PLAIN.language,
                r"(?:vision|audio)_tower", r"embed_(?:vision|audio)\..*")
_MINICPM = Parts(_PLAIN.towers, ("model.merger*",), _PLAIN.language, _PLAIN.layers, r"model\.merger\..*")
_OVIS = Parts(_PLAIN.towers, ("*visual_embeddings_table*",), _PLAIN.language, _PLAIN.layers, "visual_embeddings_table")
_MLLAMA = Parts(("*vision_model*",), _PLAIN.projector, _PLAIN.language, "vision_model", _PLAIN.aligner)
_AUDIO = Parts(("*audio_tower*",), _PLAIN.projector, _PLAIN.language, "audio_tower", _PLAIN.aligner)
PARTS = {
    **dict.fromkeys(("llava", "paligemma", "gemma3", "internvl", "mistral3", "aya_vision", "cohere2_vision", "lfm2_vl"),
                    _PLAIN),
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), _TILES),
    **dict.fromkeys(("idefics3", "smolvlm"), _CONNECTOR), **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), _QWEN),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _QWEN3),
    "qwen2_5_omni_thinker": _QWEN_OMNI, **dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), _GLM),
    "deepseek_vl": _JANUS, "deepseek_vl_hybrid": _DEEPSEEK, "janus": _JANUS, "gemma4": _GEMMA4,
    "minicpmv4_6": _MINICPM, "ovis2": _OVIS, **dict.fromkeys(("mllama", "llama4"), _MLLAMA),
    "qwen2_audio": _AUDIO,
}
"""``model_type`` -> the parts of its models."""


def known(name: str) -> str:
    """The known name of a hub id, or of a directory with such a name.

    Known names, paths with a configuration and names of functions are returned unchanged. So are unknown names:
    ``models.find`` reports them.

    Example: ``liuhaotian/llava-v1.5-7b`` and ``./checkpoints/llava-v1.5-7b`` are ``llava-1.5-7b``.
    """
    if os.path.isfile(name) or os.path.isfile(os.path.join(name, "config.json")) or ":" in name:
        return name
    return hub_ids.known_name(name, models.known_names()) or name


def llava(name: str, tower: str | None) -> str:
    """The known name of a model that LLaVA's scripts name by its language model and its vision tower."""
    if tower and is_language_model_of_llava(name) and last(tower) == CLIP:
        return LANGUAGE_MODELS[last(name)]
    return known(name)


def is_language_model_of_llava(name: str) -> bool:
    """Whether a name is a bare language model of :data:`LANGUAGE_MODELS`, without a vision tower."""
    return last(name) in LANGUAGE_MODELS


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
