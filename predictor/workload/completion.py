"""Fills in every key of a workload that was not given.

Nothing is rejected here. Keys that contradict each other are completed too; ``predictor.workload.contradictions``
rejects them afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.value_types import FrozenMap, Invalid
from predictor.workload import deepspeed_settings, lora_keys, modes, optimizers, quantization_keys
from predictor.workload.engines import ENGINES
from predictor.workload.workload_draft import Draft, read_config

Values = Mapping[str, Any]


def complete(user_keys: Values, defaults: Values, config_name: str) -> Draft:
    """The draft of the keys that the user gave, with all others filled in."""
    values = {**defaults, **user_keys}
    for fill in (_of_inference, _adapters, _engine):
        values |= fill(values, user_keys)
    config, unreadable = read_config(values["deepspeed"], config_name)
    settings = deepspeed_settings.settled(config)
    given = {**user_keys, **_from_deepspeed(settings)}
    given |= _batch_sizes(config, given, values | given)
    values |= given
    for fill_given in (_dtype, _optimizer_arguments, _quantization):
        values |= fill_given(values, given)
    return Draft(values, user_keys, given, config, settings, config_name, unreadable)


def _of_inference(values: Values, user_keys: Values) -> dict[str, Any]:
    """Fills in inference: one batch size for both keys, no recomputation; the turns of a conversation set the rest."""
    if values["mode"] == "training":
        return {}
    batch = values["per_device_eval_batch_size"] or 1
    filled = {"recipe": "inference", "gradient_checkpointing": False,  # the recipe's name appears in job names
              "per_device_eval_batch_size": batch, "per_device_train_batch_size": batch}
    if values["conversation"] is not None:
        filled |= dict.fromkeys(modes.ANSWERED_BY_TURNS)
    if values["gpu_memory_utilization"] is not None:
        filled["block_size"] = values["block_size"] or modes.BLOCK_TOKENS
    return filled


def _adapters(values: Values, user_keys: Values) -> dict[str, Any]:
    """The keys ``lora`` and ``recipe``: adapters imply recipe ``lora``, and the recipe implies default adapters."""
    if values["lora"] is not None:
        return {"recipe": "lora"}
    return {"lora": lora_keys.DEFAULTS} if values["recipe"] == "lora" else {}


def _engine(values: Values, user_keys: Values) -> dict[str, Any]:
    """The engine, which a DeepSpeed key implies, and the engine's own settings."""
    engine = values["engine"] or ("deepspeed" if "deepspeed" in user_keys or "zero_stage" in user_keys else "torch")
    own = ENGINES[engine].settings if engine in ENGINES else {}
    return {"engine": engine} | {key: values[key] or FrozenMap(defaults) for key, defaults in own.items()}


def _from_deepspeed(settings: Values) -> dict[str, Any]:
    """The settings of a DeepSpeed config under the names of a workload."""
    return {ours: settings[theirs] for theirs, ours in deepspeed_settings.SAME_AS.items()
            if settings.get(theirs) not in (None, "auto")}


def _batch_sizes(config: Values, given: Values, values: Values) -> dict[str, int]:
    """Micro-batch size and accumulation steps that follow from DeepSpeed's ``train_batch_size``."""
    if config.get("train_batch_size") in (None, "auto"):
        return {}
    try:
        micro, accumulation = (given.get(key) for key in deepspeed_settings.BATCH_KEYS)
        sizes = deepspeed_settings.batch_sizes(config["train_batch_size"], micro, accumulation,
                                               values["data_parallel_size"] * values["tensor_parallel_size"])
    except Invalid:
        return {}
    return dict(zip(deepspeed_settings.BATCH_KEYS, sizes))


def _dtype(values: Values, given: Values) -> dict[str, Any]:
    """The dtype of weights under autocast: fp32, or bf16 beside quantized weights."""
    mixed = values["mixed_precision"]
    narrow = values["quantization"] and mixed == "bf16"
    return {} if mixed == "none" else {"dtype": given.get("dtype", "bf16" if narrow else "fp32")}


def _optimizer_arguments(values: Values, given: Values) -> dict[str, Any]:
    """``optim_args`` converted as the optimizer reads them; nothing if they are invalid."""
    try:
        return {"optim_args": FrozenMap(optimizers.read(values["optim"], values["optim_args"]))}
    except Invalid:
        return {}


def _quantization(values: Values, given: Values) -> dict[str, Any]:
    """Defaults of quantization in training: peft's preparation, and the modules that are not quantized."""
    quantization = values["quantization"]
    if quantization is None or values["mode"] == "inference":
        return {}
    return {"quantization": FrozenMap({
        **quantization, "prepare": quantization.get("prepare", "peft"),
        "llm_int8_skip_modules": quantization["llm_int8_skip_modules"] or quantization_keys.SKIPPED})}
