"""Reads FSDP settings from the Trainer's arguments or accelerate's configuration."""

from __future__ import annotations

from typing import Any

from predictor.common.files import read_mapping
from predictor.common.suggestions import nearest, quoted
from predictor.readers import fsdp1, weight_dtype
from predictor.readers.reading import Reading
from predictor.workload.keys import Keys

WRAPS = "TRANSFORMER_BASED_WRAP"
WORDS = {"true": True, "yes": True, "1": True, "on": True, "y": True, "t": True} | dict.fromkeys(
    ("false", "no", "0", "off", "n", "f", "none"), False)
"""accelerate 1.15, utils/environment.py, ``str_to_bool``."""
OFF = {
    **dict.fromkeys(("offload_params", "cpu_offload"), "parameters on the CPU are not predicted"),
    **dict.fromkeys(("activation_checkpointing_offload", "activation_cpu_offload"),
                    "activations in host memory are predicted for gradient_checkpointing_kwargs offload alone"),
    "ignored_modules": "every parameter is sharded", "mixed_precision_policy": "give bf16 of the training",
    **dict.fromkeys(("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"), "GPUs are predicted")}
"""Setting that is not predicted -> why, or what to give instead."""
RESHARDS = {"full_shard": True, "shard_grad_op": False}
"""Word of ``fsdp`` -> its ``reshard_after_forward``; the first word counts (transformers 5.17,
training_args.py, ``_apply_legacy_fsdp_to_config``)."""
WITHOUT_EFFECT = (
    "state_dict_type", "final_state_dict_type", "cpu_ram_efficient_loading", "cpu_offload_pin_memory", "min_num_params",
    "sync_module_states", "use_orig_params", "backward_prefetch", "forward_prefetch", "limit_all_gathers",
    "sharding_strategy", "xla_fsdp_settings")
"""Settings without effect on the peak, or ignored under version 2; ``min_num_params`` belongs to another policy."""
KNOWN = ("version", "reshard_after_forward", "auto_wrap_policy", "transformer_layer_cls_to_wrap",
         "activation_checkpointing", *OFF, *WITHOUT_EFFECT)


def use(reading: Reading) -> None:
    """Sets the engine ``fsdp2``, or ``fsdp1`` under version 1, and its settings.

    The version is 2 unless the config has 1 (transformers 5.17, training_args.py, ``_process_fsdp_args``). accelerate
    1.15 has the same keys (utils/dataclasses.py, ``FullyShardedDataParallelPlugin``).

    On the emulated GPU the Trainer (Llama of 4 layers, bf16, two ranks; 16 and 512 tokens, with and without
    checkpointing) took 16 bytes more than the prediction, both with its own arguments and with accelerate's file.

    Raises:
        InputError: a setting that is not predicted.
    """
    config, keys = _config(reading), ("fsdp", "fsdp_config", "fsdp_version")
    if str(config.get("version", 2)).partition(" ")[0] == "1":
        _use_version_1(reading, config)
        return
    by: list[str] = [key for key in keys if key in reading.written]
    words = _words(reading)
    _check(reading, words, config)
    fsdp: dict[str, Any] = {"wrap": "accelerate", "reshard_after_forward": _flag(
        reading, config, "reshard_after_forward", RESHARDS[words[0]] if words else True)}
    wrapped = config.get("transformer_layer_cls_to_wrap")
    if wrapped:
        fsdp["transformer_layer_cls_to_wrap"] = wrapped.split(",") if isinstance(wrapped, str) else wrapped
    if reading.half:
        fsdp["param_dtype"] = reading.half
    reading.put("engine", "fsdp2", *by[:1])
    reading.put("fsdp", fsdp, *by, *filter(None, [reading.half]))
    _weights(reading)
    if _flag(reading, config, "activation_checkpointing", False):
        _checkpointing(reading, by)


def _use_version_1(reading: Reading, config: dict[str, Any]) -> None:
    _check_policy(reading, config)
    for key in ("ignored_modules", "mixed_precision_policy"):
        if config.get(key):
            raise reading.wrong("fsdp_config", f"has {key} {quoted(config[key])}: {OFF[key]}: leave it out")

    def flag(key: str, default: bool) -> bool:
        return _flag(reading, config, key, default)

    fsdp1.use(reading, config, _words(reading), flag)
    _weights(reading)
    if flag("activation_checkpointing", False):
        _checkpointing(reading, ["fsdp_config"] if "fsdp_config" in reading.written else [])


def _words(reading: Reading) -> list[str]:
    """The words of ``fsdp``, without ``auto_wrap``, which version 2 always does."""
    value = reading["fsdp"]
    words = value.split() if isinstance(value, str) else value if isinstance(value, (list, tuple)) else ()
    return [str(word) for word in words if word != "auto_wrap"]


def _check(reading: Reading, words: list[str], config: dict[str, Any]) -> None:
    """Rejects settings of version 2 that are not predicted."""
    if str(config.get("version", 2)) != "2":
        raise reading.wrong("fsdp_config", f"has version {quoted(config['version'])}: it is 1 or 2")
    if "offload" in words:
        raise reading.refused("fsdp", "offloads to the CPU, which is not predicted: leave it out")
    for word in words:
        if word not in RESHARDS:
            raise reading.wrong("fsdp", f"has {quoted(word)}: of version 2 are {', '.join(RESHARDS)} and auto_wrap"
                                        f"{nearest(word, RESHARDS)}")
    for key, why in OFF.items():
        if config.get(key) and WORDS.get(str(config[key]).lower(), True):
            raise reading.wrong("fsdp_config", f"has {key} {quoted(config[key])}: {why}: leave it out")
    _check_policy(reading, config)


def _check_policy(reading: Reading, config: dict[str, Any]) -> None:
    policy = str(config.get("auto_wrap_policy", WRAPS))
    if policy.upper() != WRAPS:
        raise reading.refused("fsdp_config", f"has auto_wrap_policy {policy}, which is not predicted: give {WRAPS}")


def _checkpointing(reading: Reading, by: list[str]) -> None:
    """Reads FSDP's ``activation_checkpointing`` as the model's own gradient checkpointing."""
    if reading["gradient_checkpointing"]:  # transformers 5.17, trainer.py, create_accelerator_and_postprocess
        raise reading.wrong("gradient_checkpointing", "is on, and so is activation_checkpointing of FSDP: the "
                                                      "Trainer stops there; keep one")
    reading.put("gradient_checkpointing", True, *by)
    reading.note("fsdp_config activation_checkpointing: FSDP's wrappers are predicted as transformers' own "
                 "checkpointing", wrapped)


def _config(reading: Reading) -> dict[str, Any]:
    config = reading["fsdp_config"] or {}
    if isinstance(config, str):
        config = read_mapping(reading.file("fsdp_config"), "fsdp_config")
    settings = {str(key).removeprefix("fsdp_"): item for key, item in config.items()}
    for key in settings:
        if key not in KNOWN:
            raise reading.wrong("fsdp_config", f"has the key {quoted(key)}, which FSDP has not{nearest(key, KNOWN)}")
    return settings


def _weights(reading: Reading) -> None:
    """Sets the dtype of the weights.

    If all parameters train under mixed precision, accelerate casts them to fp32, whatever dtype they were loaded in
    (utils/fsdp_utils.py, ``fsdp2_prepare_model``).
    """
    own = "torch_dtype" in reading.form.fields
    dtype = reading["torch_dtype"] if own else reading.half or "fp32"
    if dtype in (None, "auto"):
        weight_dtype.loaded(reading, "torch_dtype")
    else:
        reading.put("dtype", dtype, "torch_dtype" if own else reading.half or "bf16")
    if reading.workload["dtype"] == "fp32" and reading.half and reading.workload["recipe"] == "full":
        reading.put("dtype", "bf16", because="all train: fp32 whatever they were")


def _flag(reading: Reading, config: dict[str, Any], key: str, default: bool) -> bool:
    flag = WORDS.get(str(config.get(key, default)).lower())
    if flag is None:
        raise reading.wrong("fsdp_config", f"has {key} {quoted(config[key])}: it is true or false")
    return flag


def wrapped(workload: Keys) -> str | None:
    """Applies a note only to FSDP (the ``of`` of a note)."""
    return "" if workload.engine in ("fsdp1", "fsdp2") else None
