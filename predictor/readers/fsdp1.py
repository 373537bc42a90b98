"""Reads settings of FSDP1 (``FullyShardedDataParallel``) from accelerate's configuration or the Trainer's arguments.

accelerate 1.15, utils/dataclasses.py, ``FullyShardedDataParallelPlugin``, and accelerator.py, ``prepare_model``.
"""

from __future__ import annotations

from typing import Any

from predictor.common import numbers
from predictor.common.suggestions import nearest, quoted
from predictor.readers.reading import Reading
from predictor.workload import fsdp1_keys
from predictor.workload.keys import Keys

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""``FSDP_SHARDING_STRATEGY`` of accelerate; a number is a place in it, from 1 on."""
PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
"""``FSDP_BACKWARD_PREFETCH``; without the key nothing is prefetched."""


def use(reading: Reading, config: dict[str, Any], words: list[str], flag: Any) -> None:
    """Sets the engine ``fsdp1``, its settings, and mixed precision.

    Args:
        config: the settings without their prefix.
        words: the words of ``fsdp``.
        flag: reads a setting that is true or false: its key and its default.

    Raises:
        InputError: a setting that is not predicted.
    """
    by: list[str] = [key for key in ("fsdp", "fsdp_config", "fsdp_version") if key in reading.written]
    strategy = _choice(reading, config, "sharding_strategy", STRATEGIES, config.get("reshard_after_forward") or (
        words[0] if words else "FULL_SHARD"))
    if strategy == fsdp1_keys.NOTHING:
        raise reading.refused("fsdp_config", "has sharding_strategy NO_SHARD, which is not predicted: use DDP")
    if flag("forward_prefetch", False):
        raise reading.refused("fsdp_config", "has forward_prefetch, which is not predicted: leave it out")
    keys = {"sharding_strategy": strategy, "cpu_offload": flag("offload_params", False) or "offload" in words,
            "use_orig_params": flag("use_orig_params", False), "limit_all_gathers": flag("limit_all_gathers", True),
            "backward_prefetch": _choice(reading, config, "backward_prefetch", PREFETCHES, "NO_PREFETCH")}
    wrapped = config.get("transformer_layer_cls_to_wrap")
    if wrapped:
        keys["transformer_layer_cls_to_wrap"] = wrapped.split(",") if isinstance(wrapped, str) else wrapped
    reading.put("engine", "fsdp1", *by[:1])
    reading.put("fsdp1", {name: value for name, value in keys.items() if value != fsdp1_keys.DEFAULTS[name]}, *by)
    if reading.half:
        reading.put("mixed_precision", reading.half, reading.half)
    if strategy in fsdp1_keys.HYBRIDS:
        reading.note(f"{strategy}: a sharding group is predicted as {fsdp1_keys.GPUS_OF_NODE} GPUs, those of a node; "
                     "say otherwise with --fsdp1 sharding_group_size=N", _of_fsdp1)
    if flag("sync_module_states", False) or flag("cpu_ram_efficient_loading", False):
        reading.note("sync_module_states: the buckets in which the first rank sends its weights at start-up (250 MiB "
                     "each) are not in the prediction; forward takes more room", _of_fsdp1)


def _choice(reading: Reading, config: dict[str, Any], key: str, names: tuple[str, ...], default: Any) -> str:
    value = str(config.get(key) or default).upper()
    place = numbers.whole(value)
    if place is not None and 0 < place <= len(names):
        value = names[place - 1]
    if value not in names:
        raise reading.wrong("fsdp_config", f"has {key} {quoted(config.get(key) or default)}: it is one of "
                                           f"{', '.join(names)}{nearest(value, names)}")
    return value


def _of_fsdp1(workload: Keys) -> str | None:
    """Applies a note only to FSDP1 (the ``of`` of a note)."""
    return "" if workload.engine == "fsdp1" else None
