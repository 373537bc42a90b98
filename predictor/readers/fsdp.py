"""FSDP2 as the Trainer's arguments and accelerate's configuration ask for it."""

from __future__ import annotations

from typing import Any

from predictor.common.files import read_mapping
from predictor.common.suggestions import nearest, show
from predictor.readers import weight_dtype
from predictor.readers.configuration import Reading
from predictor.workload.workload import Workload

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
"""What is not predicted, and why."""
RESHARDS = {"full_shard": True, "shard_grad_op": False}
"""Words of ``fsdp`` -> what they say of ``reshard_after_forward``; the first counts (transformers 5.17,
training_args.py, ``_apply_legacy_fsdp_to_config``)."""
WITHOUT_EFFECT = (
    "state_dict_type", "final_state_dict_type", "cpu_ram_efficient_loading", "cpu_offload_pin_memory", "min_num_params",
    "sync_module_states", "use_orig_params", "backward_prefetch", "forward_prefetch", "limit_all_gathers",
    "sharding_strategy", "xla_fsdp_settings")
"""On the peak, or ignored under version 2; ``min_num_params`` is of another policy."""
KNOWN = ("version", "reshard_after_forward", "auto_wrap_policy", "transformer_layer_cls_to_wrap",
         "activation_checkpointing", *OFF, *WITHOUT_EFFECT)


def use(reading: Reading) -> None:
    """transformers 5.17, training_args.py, ``_process_fsdp_args``: version 2 unless it says 1; accelerate 1.15 has the
    same keys (utils/dataclasses.py, ``FullyShardedDataParallelPlugin``).

    On the emulated GPU the Trainer (Llama of 4 layers, bf16, two ranks; 16 and 512 tokens, with checkpointing and
    without) took 16 bytes more than is predicted of what is read, alike by its arguments and by accelerate's file.

    Raises:
        InputError: FSDP1, or what is not predicted.
    """
    config, by = _config(reading), [key for key in ("fsdp", "fsdp_config", "fsdp_version") if key in reading.written]
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


def _words(reading: Reading) -> list[str]:
    """Those of ``fsdp``, without the one that version 2 always does."""
    words = reading["fsdp"]
    words = words.split() if isinstance(words, str) else words if isinstance(words, (list, tuple)) else ()
    return [str(word) for word in words if word != "auto_wrap"]


def _check(reading: Reading, words: list[str], config: dict[str, Any]) -> None:
    """Refuses FSDP1, and what of version 2 is not predicted."""
    if str(config.get("version", 2)) != "2":
        raise reading.wrong("fsdp_config", f"has version {config['version']}: FSDP1 is not predicted, give version 2")
    if "offload" in words:
        raise reading.wrong("fsdp", "offloads to the CPU, which is not predicted: leave it out")
    for word in words:
        if word not in RESHARDS:
            raise reading.wrong("fsdp", f"has {show(word)}: of version 2 are {', '.join(RESHARDS)} and auto_wrap"
                                        f"{nearest(word, RESHARDS)}")
    for key, why in OFF.items():
        if config.get(key) and WORDS.get(str(config[key]).lower(), True):
            raise reading.wrong("fsdp_config", f"has {key} {show(config[key])}: {why}: leave it out")
    policy = str(config.get("auto_wrap_policy", WRAPS))
    if policy.upper() != WRAPS:
        raise reading.wrong("fsdp_config", f"has auto_wrap_policy {policy}, which is not predicted: give {WRAPS}")


def _checkpointing(reading: Reading, by: list[str]) -> None:
    """FSDP's wrappers that recompute, as the model's own checkpointing."""
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
    found = {str(key).removeprefix("fsdp_"): item for key, item in config.items()}
    for key in found:
        if key not in KNOWN:
            raise reading.wrong("fsdp_config", f"has the key {show(key)}, which FSDP has not{nearest(key, KNOWN)}")
    return found


def _weights(reading: Reading) -> None:
    """Where all of them train and compute in a narrower dtype, accelerate makes them fp32 whatever they were
    (utils/fsdp_utils.py, ``fsdp2_prepare_model``)."""
    own = "torch_dtype" in reading.form.fields
    asked = reading["torch_dtype"] if own else reading.half or "fp32"
    if asked in (None, "auto"):
        weight_dtype.loaded(reading, "torch_dtype")
    else:
        reading.put("dtype", asked, "torch_dtype" if own else reading.half or "bf16")
    if reading.workload["dtype"] == "fp32" and reading.half and reading.workload["recipe"] == "full":
        reading.put("dtype", "bf16", because="all train: fp32 whatever they were")


def _flag(reading: Reading, config: dict[str, Any], key: str, default: bool) -> bool:
    found = WORDS.get(str(config.get(key, default)).lower())
    if found is None:
        raise reading.wrong("fsdp_config", f"has {key} {show(config[key])}: under version 2 it is true or false")
    return found


def wrapped(workload: Workload) -> str | None:
    """Of a note about what FSDP wraps."""
    return "" if workload.engine == "fsdp2" else None
