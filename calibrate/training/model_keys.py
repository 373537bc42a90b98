"""What of a workload a built model says: its configuration, recipe, adapters, weights, attention, checkpointing."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from predictor.common.dtypes import SHORT_NAMES
from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.events.model_facts import modality
from predictor.model import lora, models, parser

SAID_ELSEWHERE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "quantization_config")
"""Keys of a configuration that are not kept: other keys of a workload say them, or nothing needs them."""
NO_MATTER = (*SAID_ELSEWHERE, "architectures", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "id2label",
             "label2id")
"""Those in which a model may differ from the one of a known name: they change nothing that a step allocates."""
RECIPES = ("finetune", "pretrain", "full")
MOST_PATTERNS = 200
KERNELS = {(True, True, True): "auto", (False, True, True): "flash", (False, False, True): "efficient",
           (True, False, False): "cudnn", (False, False, False): "math"}
"""Whether cuDNN's, flash and memory-efficient attention are enabled -> ``sdpa_backend``."""


def base_of(model: Any) -> Any:
    """The model of transformers under peft's.

    Raises:
        InputError: it is none.
    """
    base = model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model
    if not hasattr(getattr(base, "config", None), "to_json_string"):
        raise InputError(f"the model is a {type(base).__name__} outside transformers: give a Workload, its model a "
                         "function (FILE.py:FUNCTION)")
    return base


def keeps_keys_and_values(model: Any, called_with: Mapping[str, Any]) -> bool:
    """Whether a forward in training makes a cache: ``use_cache`` of the call, or else of the configuration; a model
    under gradient checkpointing turns it off itself (transformers 5.17, modeling_layers.py)."""
    if called_with.get("use_cache") is not None:
        return bool(called_with["use_cache"])
    if getattr(model, "is_gradient_checkpointing", False):
        return False
    config = getattr(model, "config", None)
    own = getattr(config, "use_cache", None)
    if own is None and hasattr(config, "get_text_config"):
        own = getattr(config.get_text_config(), "use_cache", None)
    return bool(own)


def model_keys(model: Any) -> dict[str, Any]:
    """Keys of a workload, without ``model``.

    Raises:
        InputError: something that no key can say.
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
    """``config.json`` of a model as it is now."""
    base = base_of(model)
    document = json.loads(base.config.to_json_string(use_diff=False))
    for key in SAID_ELSEWHERE:
        document.pop(key, None)
    return document | {"architectures": [type(base).__name__]}


def known_name(model: Any) -> str | None:
    """The name that needs no file, if this is exactly that model."""
    from transformers import AutoConfig

    mine = _bare(document_of(model))
    for name in models.known_names():
        document = dict(models.find(name).document)
        if document.get("model_type") != mine["model_type"]:
            continue
        config = AutoConfig.for_model(document.pop("model_type"), **document)
        if _bare(json.loads(config.to_json_string(use_diff=False))) == mine:
            return name
    return None


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items()
                if key not in NO_MATTER and not key.startswith("_") and item is not None}
    return value


def save(model: Any, processing_class: Any, directory: Path) -> str:
    """Leave the configuration, and the image processor's where there is one, in a directory; the path of it.

    Raises:
        InputError: it cannot be written.
    """
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: the model's configuration cannot be written there: {error.strerror}") from None
    write_whole(str(directory / "config.json"), (json.dumps(document_of(model), indent=2) + "\n").encode())
    pictures = getattr(processing_class, "image_processor", None)
    if hasattr(pictures, "to_json_string"):
        write_whole(str(directory / "preprocessor_config.json"), pictures.to_json_string().encode())
    return str(directory)


# --- what trains --------------------------------------------------------------------------------------


def own_name(name: str) -> str:
    """A parameter's path without what wraps its model."""
    return name.removeprefix("module.").removeprefix("base_model.model.")


def recipe_keys(trains: dict[str, bool], adapted: bool) -> dict[str, Any]:
    """``recipe``, and the ``trainable`` and ``frozen`` patterns of what it does not say; the shortest way to say it.

    Args:
        trains: each parameter's path, and whether it trains.
        adapted: whether peft has put adapters in.

    Raises:
        InputError: nothing trains, or what does is too scattered for patterns.
    """
    actual = {name for name, on in trains.items() if on}
    if not actual:
        raise InputError("no parameter of the model trains")
    ways = []
    for recipe in ("lora",) if adapted else RECIPES:
        said = {name for name in trains if parser.RECIPES[recipe](modality(name))}
        if adapted:
            said = {name for name in said if not any(part in name for part in lora.UNTRAINED)}
            said |= {name for name in actual if lora.ADAPTERS in name or lora.COPIED in name}
        ways.append({"recipe": recipe,
                     "trainable": tuple(covering(trains, actual - said, lambda name: name in actual)),
                     "frozen": tuple(covering(trains, said - actual, lambda name: name not in actual))})
    way = min(ways, key=lambda way: len(way["trainable"]) + len(way["frozen"]))
    if len(way["trainable"]) + len(way["frozen"]) > MOST_PATTERNS:
        raise InputError("what trains is too scattered to read off the model: give a Workload with trainable and "
                         "frozen patterns")
    return {key: value for key, value in way.items() if value}


def covering(names: Iterable[str], wanted: set[str], may: Callable[[str], bool]) -> list[str]:
    """The fewest paths of modules or parameters that hold all ``wanted``, and nothing but what ``may`` be there."""
    def below(prefix: str, members: list[list[str]]) -> list[str]:
        paths = [".".join(filter(None, [prefix, *parts])) for parts in members]
        if not any(path in wanted for path in paths):
            return []
        if prefix and all(map(may, paths)):
            return [prefix]
        found = []
        for head, group in groupby(sorted(members), key=lambda parts: parts[0]):
            found += below(".".join(filter(None, [prefix, head])), [parts[1:] for parts in group])
        return found

    return below("", [name.split(".") for name in names])


def _adapters(model: Any) -> dict[str, Any]:
    """The ``lora`` key of a model that peft wrapped."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        return {}
    if len(configs) > 1:
        raise InputError("the model has several adapters of peft's: one is predicted")
    found = next(iter(configs.values()))
    kind = getattr(found.peft_type, "value", found.peft_type)
    if kind != "LORA":
        raise InputError(f"the model has adapters of peft's kind {kind}: LORA is predicted")
    for name in ("rank_pattern", "layers_to_transform", "layer_replication", "target_parameters", "use_qalora"):
        if getattr(found, name, None):
            raise InputError(f"peft's {name} is not predicted yet: leave it out, or use peakcast learn")
    targets, saved = found.target_modules, found.modules_to_save
    wide = {str(p.dtype) for name, p in model.named_parameters() if lora.ADAPTERS in name} == {"torch.float32"}
    return {"lora": {
        "r": found.r, "lora_alpha": found.lora_alpha, "lora_dropout": found.lora_dropout, "bias": found.bias,
        "target_modules": targets if isinstance(targets, str) else sorted(targets),
        "modules_to_save": sorted(saved) if saved else None, "use_rslora": bool(found.use_rslora),
        "use_dora": bool(found.use_dora), "autocast_adapter_dtype": wide}}


def _quantization(base: Any) -> dict[str, Any]:
    """The ``quantization`` key of a model whose layers bitsandbytes quantised."""
    quantizer = getattr(base, "hf_quantizer", None)
    if quantizer is None:
        return {}
    config = quantizer.quantization_config
    if not getattr(config, "load_in_4bit", False):
        method = getattr(getattr(config, "quant_method", None), "value", type(config).__name__)
        raise InputError(f"the model's weights are quantised by {method}: bitsandbytes' 4 bits are predicted")
    others = [p for name, p in base.named_parameters() if p.is_floating_point() and lora.ADAPTERS not in name]
    wide = any(str(parameter.dtype) == "torch.float32" for parameter in others)
    return {"quantization": {
        "load_in_4bit": True, "bnb_4bit_quant_type": config.bnb_4bit_quant_type,
        "bnb_4bit_use_double_quant": config.bnb_4bit_use_double_quant,
        "bnb_4bit_compute_dtype": str(config.bnb_4bit_compute_dtype),
        "llm_int8_skip_modules": sorted(quantizer.modules_to_not_convert), "prepare": "peft" if wide else "trl"}}


# --- how it computes ----------------------------------------------------------------------------------


def _dtype(base: Any) -> str:
    """Of most weights; adapters and what was made fp32 beside them do not count."""
    sizes: dict[str, int] = {}
    for name, parameter in base.named_parameters():
        if parameter.is_floating_point() and lora.ADAPTERS not in name:
            dtype = str(parameter.dtype).removeprefix("torch.")
            sizes[dtype] = sizes.get(dtype, 0) + getattr(parameter, "ds_numel", parameter.numel())
    most = max(sizes, key=sizes.get)
    if most not in SHORT_NAMES:
        raise InputError(f"the model's weights are {most}: bf16, fp16 and fp32 are predicted")
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
    """``gradient_checkpointing`` and its keys, from what ``gradient_checkpointing_enable`` left in the modules
    (transformers 5.17, modeling_utils.py, ``_set_gradient_checkpointing``)."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = {name: layer for name, layer in base.named_modules() if isinstance(layer, GradientCheckpointingLayer)}
    on = [name for name, layer in layers.items() if layer.gradient_checkpointing]
    if not on:
        if not layers and getattr(base, "is_gradient_checkpointing", False):
            raise InputError(f"gradient checkpointing of {type(base).__name__} cannot be read off: give a Workload")
        return {"gradient_checkpointing": False}
    function = layers[on[0]]._gradient_checkpointing_func
    given = function.keywords if isinstance(function, functools.partial) else {}
    inner = getattr(function, "func", function)
    kwargs: dict[str, Any] = {"use_reentrant": bool(given.get("use_reentrant", True))}
    if inner.__name__ == "checkpoint_func":  # the closure that offload makes
        kwargs["offload"] = True
    keys: dict[str, Any] = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": kwargs}
    every = next((n for n in range(1, len(layers) + 1) if list(layers)[::n] == on), None)
    if every is None:
        keys["gradient_checkpointing_modules"] = tuple(covering(layers, set(on), set(on).__contains__))
    elif every > 1:
        kwargs["every_n_layers"] = every
    return keys

