"""The keys of a DeepSpeed config as they are written, and what they say under the names of a workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, show
from predictor.common.value_types import Invalid
from predictor.workload.deepspeed_keys import (
    FILLED_BY_HUGGING_FACE,
    PLAIN_NAMES,
    READ,
    REFUSED,
    WITHOUT_EFFECT,
    is_on,
    known,
    optimizer_name,
)
from predictor.workload.deepspeed_releases import default

READ_SECTIONS = ("zero_optimization", "bf16", "bfloat16", "fp16", "data_types", "tensor_parallel")
# Our keys that say the same as one of DeepSpeed's.
SAME_AS = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "zero_optimization.stage": "zero_stage",
    "optimizer": "optim",
    "offload": "offload",
    "tensor_parallel.autotp_size": "tensor_parallel_size",
    "dtype": "dtype",
}


BATCH_KEYS = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Keys of a workload that decide DeepSpeed's ``train_batch_size``."""


def written(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values that matter, by dotted key; "auto" stays where Hugging Face would fill it in.

    The optimizer section becomes one value, ``optimizer``: the workload's ``optim`` of the same memory.

    Raises:
        InputError: an unknown key, a value of the wrong kind, or an option that is not modelled. ``name`` (the file) is
            put in front.
    """
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key == "optimizer":
            values["optimizer"] = _optimizer(value, name)
        elif key in READ_SECTIONS:
            section = "bf16" if key == "bfloat16" else key
            if section == "zero_optimization" and isinstance(value, bool):
                value = {"stage": int(value)}  # the form of the first releases
            for inner, item in _mapping(value, name, key).items():
                _read(values, section, inner, item, name)
        else:
            _read(values, "", key, value, name)
    return values


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The written keys with what follows from them: ``offload``, ``dtype`` if a section settles it, and the degree of
    tensor parallelism, which 0 switches off as 1 does."""
    found: dict[str, Any] = {}
    enabled = {dtype: config.get(f"{dtype}.enabled") for dtype in ("bf16", "fp16")}
    if True in enabled.values():
        found["dtype"] = next(dtype for dtype, on in enabled.items() if on is True)
    elif set(enabled.values()) == {False}:
        found["dtype"] = "fp32"
    if config.get("tensor_parallel.autotp_size") == 0:
        found["tensor_parallel.autotp_size"] = 1
    states, weights = (offloads(config, what) for what in ("optimizer", "param"))
    if states or weights:
        found["offload"] = "all" if states and weights else "optimizer" if states else "parameters"
    return {**config, **found}


def offloads(config: Mapping[str, Any], what: str) -> bool:
    """Whether ``optimizer`` or ``param`` lies in the host's memory."""
    return config.get(f"zero_optimization.offload_{what}", {}).get("device", "none") != "none"


def clipping(config: Mapping[str, Any] | None, max_grad_norm: float, given: bool, version: tuple[int, int, int]
             ) -> float:
    """The norm that gradients are clipped to: the config's; else the workload's where there is no config, where the
    config says "auto", or where the workload gives one; else DeepSpeed's default."""
    if config is None:
        return max_grad_norm
    value = config.get("gradient_clipping")
    if value == "auto" or (value is None and given):
        return max_grad_norm
    return default("gradient_clipping", version) if value is None else value


def batch_sizes(train: int, micro: int | None, accumulation: int | None, ranks: int,
                called: str = "data_parallel_size") -> tuple[int, int]:
    """Micro batch and accumulation steps, the missing ones worked out as DeepSpeed does.

    Args:
        ranks: all GPUs, those of tensor parallelism too (0.19.8, runtime/config.py, ``DeepSpeedConfig.__init__``).
        called: what they are in a message.

    Raises:
        Invalid: the three do not multiply to ``train``.
    """
    if micro is None:
        accumulation = accumulation or 1
        micro = max(1, train // ranks // accumulation)
    elif accumulation is None:
        accumulation = max(1, train // micro // ranks)
    if micro * accumulation * ranks != train:
        raise Invalid(f"train_batch_size is {train}, but {micro} samples a GPU x {accumulation} accumulation steps x "
                      f"{called} {ranks} is {micro * accumulation * ranks}")
    return micro, accumulation


def _read(values: dict[str, Any], section: str, key: str, value: Any, name: str) -> None:
    """Puts one key into ``values``, or says what is wrong with it."""
    if section == "zero_optimization" and key in PLAIN_NAMES:
        key = f"stage3_{key}"
    dotted = f"{section}.{key}" if section else key
    if dotted in READ:
        if dotted == "zero_optimization.stage" and value == "auto":
            raise InputError(f'{name}: {dotted} is "auto", and nothing fills it in: give 0, 1, 2 or 3')
        if value is None or (value == "auto" and dotted not in FILLED_BY_HUGGING_FACE):
            return
        try:
            values[dotted] = "auto" if value == "auto" else READ[dotted].check(value)
        except Invalid as error:
            raise InputError(f"{name}: {dotted} {error}") from None
    elif key in REFUSED[section]:
        if is_on(key, value):
            raise InputError(f"{name}: {dotted} is not supported: {REFUSED[section][key]}")
    elif key not in WITHOUT_EFFECT[section]:
        raise InputError(f"{name}: DeepSpeed has no key {show(dotted)}{nearest(key, known(section))}")


def _mapping(value: Any, name: str, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{name}: {key} must be a mapping of keys to values, not {show(value)}")
    return value


def _optimizer(value: Any, name: str) -> str | None:
    section = _mapping(value, name, "optimizer")
    for key in section:
        if key not in known("optimizer"):
            hint = nearest(key, known("optimizer"))
            raise InputError(f"{name}: DeepSpeed has no key {show('optimizer.' + key)}{hint}")
    if section.get("type") is None:
        return None
    try:
        return optimizer_name(section["type"], _mapping(section.get("params") or {}, name, "optimizer.params"))
    except Invalid as error:
        raise InputError(f"{name}: optimizer.type {error}") from None
