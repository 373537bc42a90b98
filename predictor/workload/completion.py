"""What follows from the keys of a workload: a value for every key that was not given.

Nothing is refused here. Keys that contradict each other are completed too, and then refused by
``predictor.workload.contradictions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.value_types import FrozenMap, Invalid
from predictor.workload import deepspeed_settings, lora_keys, modes, optimizers, quantization_keys
from predictor.workload.engines import ENGINES
from predictor.workload.workload_draft import Case, read_config

Values = Mapping[str, Any]


def complete(asked: Values, defaults: Values, config_name: str) -> Case:
    """The keys that the user gave, with all others filled in."""
    values = {**defaults, **asked}
    for fill in (_of_inference, _adapters, _engine):
        values |= fill(values, asked)
    config, unreadable = read_config(values["deepspeed"], config_name)
    settings = deepspeed_settings.settled(config)
    given = {**asked, **_said_by(settings)}
    given |= _batch_sizes(config, given, values | given)
    values |= given
    for fill in (_dtype, _optimizer_arguments, _quantization):
        values |= fill(values, given)
    return Case(values, asked, given, config, settings, config_name, unreadable)


def _of_inference(values: Values, asked: Values) -> dict[str, Any]:
    """One batch size for both of its keys; turns say the rest; no layer is recomputed."""
    if values["mode"] == "training":
        return {}
    batch = values["per_device_eval_batch_size"] or 1
    filled = {"recipe": "inference", "gradient_checkpointing": False,  # as jobs are named
              "per_device_eval_batch_size": batch, "per_device_train_batch_size": batch}
    if values["conversation"] is not None:
        filled |= dict.fromkeys(modes.ANSWERED_BY_TURNS)
    if values["gpu_memory_utilization"] is not None:
        filled["block_size"] = values["block_size"] or modes.BLOCK_TOKENS
    return filled


def _adapters(values: Values, asked: Values) -> dict[str, Any]:
    """Adapters belong to the recipe of that name; either of the two names the other."""
    if values["lora"] is not None:
        return {"recipe": "lora"}
    return {"lora": lora_keys.DEFAULTS} if values["recipe"] == "lora" else {}


def _engine(values: Values, asked: Values) -> dict[str, Any]:
    """The engine that a key of DeepSpeed's names, and the engine's own settings."""
    engine = values["engine"] or ("deepspeed" if "deepspeed" in asked or "zero_stage" in asked else "torch")
    own = ENGINES[engine].settings if engine in ENGINES else {}
    return {"engine": engine} | {key: values[key] or FrozenMap(defaults) for key, defaults in own.items()}


def _said_by(settings: Values) -> dict[str, Any]:
    """What a DeepSpeed config says, under the names of a workload."""
    return {ours: settings[theirs] for theirs, ours in deepspeed_settings.SAME_AS.items()
            if settings.get(theirs) not in (None, "auto")}


def _batch_sizes(config: Values, given: Values, values: Values) -> dict[str, int]:
    """Those that make DeepSpeed's ``train_batch_size``."""
    if config.get("train_batch_size") in (None, "auto"):
        return {}
    try:
        sizes = deepspeed_settings.batch_sizes(
            config["train_batch_size"], *(given.get(key) for key in deepspeed_settings.BATCH_KEYS),
            values["data_parallel_size"] * values["tensor_parallel_size"])
    except Invalid:
        return {}
    return dict(zip(deepspeed_settings.BATCH_KEYS, sizes))


def _dtype(values: Values, given: Values) -> dict[str, Any]:
    """Autocast goes over fp32 weights, or over bf16 ones where the other weights are quantized."""
    mixed = values["mixed_precision"]
    narrow = values["quantization"] and mixed == "bf16"
    return {} if mixed == "none" else {"dtype": given.get("dtype", "bf16" if narrow else "fp32")}


def _optimizer_arguments(values: Values, given: Values) -> dict[str, Any]:
    """Read as the optimizer has them."""
    try:
        return {"optim_args": FrozenMap(optimizers.read(values["optim"], values["optim_args"]))}
    except Invalid:
        return {}


def _quantization(values: Values, given: Values) -> dict[str, Any]:
    """In training, the other weights are prepared as peft does, and some layers stay as they are."""
    wanted = values["quantization"]
    if wanted is None or values["mode"] == "inference":
        return {}
    return {"quantization": FrozenMap({
        **wanted, "prepare": wanted.get("prepare", "peft"),
        "llm_int8_skip_modules": wanted["llm_int8_skip_modules"] or quantization_keys.SKIPPED})}
