"""Reads workload keys from a model: configuration, recipe, adapters, weights, attention, checkpointing."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from predictor.common.dtypes import SHORT_NAMES
from predictor.common.errors import InputError
from predictor.common.files import write_together
from predictor.events.model_facts import modality
from predictor.model import lora, models, parser, transformers_releases

NOT_COPIED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "quantization_config")
"""Configuration keys that are not kept, because other workload keys hold them or nothing needs them."""
IRRELEVANT = (*NOT_COPIED, "architectures", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "id2label",
              "label2id")
"""Configuration keys in which a model may differ from a known one, because they do not change what a step allocates."""
RECIPES = ("finetune", "pretrain", "full")
MOST_PATTERNS = 200
KERNELS = {(True, True, True): "auto", (False, True, True): "flash", (False, False, True): "efficient",
           (True, False, False): "cudnn", (False, False, False): "math"}
"""Whether cuDNN, flash and memory-efficient attention are enabled -> ``sdpa_backend``."""


def base_of(model: Any) -> Any:
    """The transformers model inside peft's wrapper.

    Raises:
        InputError: the model is not one of transformers.
    """
    base = model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model
    if not hasattr(getattr(base, "config", None), "to_json_string"):
        raise InputError(f"the model is a {type(base).__name__} outside transformers: give a Workload, its model a "
                         "function (FILE.py:FUNCTION)")
    return base


def keeps_keys_and_values(model: Any, called_with: Mapping[str, Any]) -> bool:
    """Whether a training forward keeps a key-value cache.

    ``use_cache`` of the call decides, or else that of the configuration. A model with gradient checkpointing turns the
    cache off itself (transformers 5.17, modeling_layers.py).
    """
    if called_with.get("use_cache") is not None:
        return bool(called_with["use_cache"])
    if getattr(model, "is_gradient_checkpointing", False):
        return False
    config: Any = getattr(model, "config", None)
    uses_cache = getattr(config, "use_cache", None)
    if uses_cache is None and config is not None and hasattr(config, "get_text_config"):
        uses_cache = getattr(config.get_text_config(), "use_cache", None)
    return bool(uses_cache)


def model_keys(model: Any) -> dict[str, Any]:
    """Workload keys of a model, without ``model``.

    Raises:
        InputError: no key describes a property of the model.
    """
    base = base_of(model)
    keys: dict[str, Any] = {"attn_implementation": _attention(base.config)}
    if keys["attn_implementation"] == "sdpa":
        keys["sdpa_backend"] = _backend()
    keys |= _adapters(model) | _quantization(base)
    keys["dtype"] = "bf16" if "quantization" in keys else _dtype(base)
    return keys | _checkpointing(base) | recipe_keys(
        {own_name(name): parameter.requires_grad for name, parameter in base.named_parameters()}, "lora" in keys)


# --- the configuration --------------------------------------------------------------------------------


def document_of(model: Any) -> dict[str, Any]:
    """The model's current configuration as ``config.json``."""
    base = base_of(model)
    document = json.loads(base.config.to_json_string(use_diff=False))
    for key in NOT_COPIED:
        document.pop(key, None)
    return document | {"architectures": [type(base).__name__]}


def known_name(model: Any) -> str | None:
    """The built-in name with exactly this configuration, or None."""
    from transformers import AutoConfig

    own_document = _bare(document_of(model))
    for name in models.known_names():
        document = dict(models.find(name).document)
        if document.get("model_type") != own_document["model_type"]:
            continue
        config = AutoConfig.for_model(document.pop("model_type"), **document)
        if _bare(json.loads(config.to_json_string(use_diff=False))) == own_document:
            return name
    return None


def _bare(value: Any) -> Any:
    """A configuration without the keys that do not matter."""
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items()
                if key not in IRRELEVANT and not key.startswith("_") and item is not None}
    return value


def save(model: Any, processing_class: Any, directory: Path) -> str:
    """Writes the configuration, and the image processor's if there is one, into a directory. Returns the directory's
    path.

    Raises:
        InputError: the directory cannot be written.
    """
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: the model's configuration cannot be written there: {error.strerror}") from None
    files = {"config.json": json.dumps(document_of(model), indent=2) + "\n"}
    pictures: Any = getattr(processing_class, "image_processor", None)
    if hasattr(pictures, "to_json_string"):
        files["preprocessor_config.json"] = pictures.to_json_string()
    write_together({str(directory / name): text.encode() for name, text in files.items()})
    return str(directory)


# --- what trains --------------------------------------------------------------------------------------


def own_name(name: str) -> str:
    """A parameter's path without the prefixes of wrappers."""
    return name.removeprefix("module.").removeprefix("base_model.model.")


def recipe_keys(trains: dict[str, bool], adapted: bool) -> dict[str, Any]:
    """``recipe`` and the ``trainable`` and ``frozen`` patterns where the model differs from it. The shortest
    description wins.

    Args:
        trains: parameter paths, and whether each trains.
        adapted: whether peft has added adapters.

    Raises:
        InputError: nothing trains, or the trainable parameters need too many patterns.
    """
    actual = {name for name, does_train in trains.items() if does_train}
    if not actual:
        raise InputError("no parameter of the model trains")
    descriptions = []
    for recipe in ("lora",) if adapted else RECIPES:
        by_recipe = {name for name in trains if parser.RECIPES[recipe](modality(name))}
        if adapted:
            by_recipe = {name for name in by_recipe if not any(part in name for part in lora.UNTRAINED)}
            by_recipe |= {name for name in actual if lora.ADAPTERS in name or lora.COPIED in name}
        descriptions.append({
            "recipe": recipe,
            "trainable": tuple(covering(trains, actual - by_recipe, lambda name: name in actual)),
            "frozen": tuple(covering(trains, by_recipe - actual, lambda name: name not in actual))})
    description = min(descriptions, key=lambda choice: len(choice["trainable"]) + len(choice["frozen"]))
    if len(description["trainable"]) + len(description["frozen"]) > MOST_PATTERNS:
        raise InputError(f"the trainable parameters need more than {MOST_PATTERNS} patterns: give a Workload with "
                         "trainable and frozen patterns")
    return {key: value for key, value in description.items() if value}


def covering(names: Iterable[str], targets: set[str], is_allowed: Callable[[str], bool]) -> list[str]:
    """The fewest module or parameter paths that contain all ``targets``. Their other names must satisfy ``is_allowed``.
    """
    def below(prefix: str, members: list[list[str]]) -> list[str]:
        paths = [".".join(filter(None, [prefix, *parts])) for parts in members]
        if not any(path in targets for path in paths):
            return []
        if prefix and all(map(is_allowed, paths)):
            return [prefix]
        chosen = []
        for head, group in groupby(sorted(members), key=lambda parts: parts[0]):
            chosen += below(".".join(filter(None, [prefix, head])), [parts[1:] for parts in group])
        return chosen

    return below("", [name.split(".") for name in names])


def _adapters(model: Any) -> dict[str, Any]:
    """The ``lora`` key of a model that peft wrapped."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        return {}
    if len(configs) > 1:
        raise InputError("the model has several peft adapters: only one is predicted")
    config = next(iter(configs.values()))
    adapter_type = getattr(config.peft_type, "value", config.peft_type)
    if adapter_type != "LORA":
        raise InputError(f"the model has peft adapters of type {adapter_type}: only LORA is predicted")
    for name in ("rank_pattern", "layers_to_transform", "layer_replication", "use_qalora"):
        if getattr(config, name, None):
            raise InputError(f"peft's {name} is not predicted yet: leave it out, or use peakcast learn")
    targets, saved = config.target_modules, config.modules_to_save
    parameters = getattr(config, "target_parameters", None)
    wide = {str(p.dtype) for name, p in model.named_parameters() if lora.ADAPTERS in name} == {"torch.float32"}
    return {"lora": {
        "r": config.r, "lora_alpha": config.lora_alpha, "lora_dropout": config.lora_dropout, "bias": config.bias,
        "target_modules": targets if isinstance(targets, str) else sorted(targets),
        "modules_to_save": sorted(saved) if saved else None, "use_rslora": bool(config.use_rslora),
        "use_dora": bool(config.use_dora), "autocast_adapter_dtype": wide}
        | ({"target_parameters": sorted(parameters)} if parameters else {})}


def _quantization(base: Any) -> dict[str, Any]:
    """The ``quantization`` key of a model whose layers bitsandbytes quantised."""
    quantizer = getattr(base, "hf_quantizer", None)
    if quantizer is None:
        return {}
    config = quantizer.quantization_config
    if not getattr(config, "load_in_4bit", False):
        method = getattr(getattr(config, "quant_method", None), "value", type(config).__name__)
        raise InputError(f"the model's weights are quantised by {method}: only bitsandbytes' 4 bits are predicted")
    weights = [p for name, p in base.named_parameters() if p.is_floating_point() and lora.ADAPTERS not in name]
    wide = any(str(parameter.dtype) == "torch.float32" for parameter in weights)
    return {"quantization": {
        "load_in_4bit": True, "bnb_4bit_quant_type": config.bnb_4bit_quant_type,
        "bnb_4bit_use_double_quant": config.bnb_4bit_use_double_quant,
        "bnb_4bit_compute_dtype": str(config.bnb_4bit_compute_dtype),
        "llm_int8_skip_modules": sorted(quantizer.modules_to_not_convert), "prepare": "peft" if wide else "trl"}}


# --- how it computes ----------------------------------------------------------------------------------


def _dtype(base: Any) -> str:
    """Dtype of most weights. Adapters, and weights that were upcast to fp32, do not count."""
    sizes: dict[str, int] = {}
    for name, parameter in base.named_parameters():
        if parameter.is_floating_point() and lora.ADAPTERS not in name:
            dtype = str(parameter.dtype).removeprefix("torch.")
            sizes[dtype] = sizes.get(dtype, 0) + getattr(parameter, "ds_numel", parameter.numel())
    most = max(sizes, key=lambda dtype: sizes[dtype])
    if most not in SHORT_NAMES:
        raise InputError(f"the model's weights are {most}: only bf16, fp16 and fp32 are predicted")
    return SHORT_NAMES[most]


def _attention(config: Any) -> str:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "_attn_implementation", None) or "eager"


def _backend() -> str:
    from torch.backends import cuda

    enabled = cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()
    if enabled not in KERNELS:
        raise InputError("this choice of enabled kernels of scaled_dot_product_attention is not predicted: give a "
                         "Workload with sdpa_backend")
    return KERNELS[enabled]


def _checkpointing(base: Any) -> dict[str, Any]:
    """``gradient_checkpointing`` and its keys, read from what ``gradient_checkpointing_enable`` set in the modules
    (transformers 5.17, modeling_utils.py, ``_set_gradient_checkpointing``)."""
    layers: dict[str, Any] = {name: layer for name, layer in base.named_modules()
                              if transformers_releases.knows_its_checkpointing(layer)}
    on = [name for name, layer in layers.items() if layer.gradient_checkpointing]
    if not on:
        if not layers and getattr(base, "is_gradient_checkpointing", False):
            raise InputError(f"gradient checkpointing of {type(base).__name__} cannot be read from the model: "
                             "give a Workload")
        return {"gradient_checkpointing": False}
    function: Any = layers[on[0]]._gradient_checkpointing_func
    function_keywords = function.keywords if isinstance(function, functools.partial) else {}
    inner = getattr(function, "func", function)
    kwargs: dict[str, Any] = {"use_reentrant": bool(function_keywords.get("use_reentrant", True))}
    if inner.__name__ == "checkpoint_func":  # name of the closure that offload creates
        kwargs["offload"] = True
    keys: dict[str, Any] = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": kwargs}
    every = next((n for n in range(1, len(layers) + 1) if list(layers)[::n] == on), None)
    if every is None:
        keys["gradient_checkpointing_modules"] = tuple(covering(layers, set(on), set(on).__contains__))
    elif every > 1:
        kwargs["every_n_layers"] = every
    return keys

