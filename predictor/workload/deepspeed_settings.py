"""Reads the keys of a DeepSpeed config, and translates them to keys of a workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.errors import InputError, NotPredicted
from predictor.common.suggestions import nearest, quoted
from predictor.common.value_types import Invalid
from predictor.workload.deepspeed_keys import (
    FILLED_BY_HUGGING_FACE,
    NAMES_WITHOUT_PREFIX,
    READ,
    REFUSED,
    WITHOUT_EFFECT,
    is_on,
    known,
    optimizer_name,
)
from predictor.workload.deepspeed_releases import FP32_ACCUMULATION_SINCE, default

READ_SECTIONS = ("zero_optimization", "bf16", "bfloat16", "fp16", "data_types", "tensor_parallel")
# Key of a DeepSpeed config -> the workload's key with the same meaning.
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
    """The settings of a config that change memory, by dotted key; "auto" stays if Hugging Face fills it in.

    The optimizer section becomes one value, ``optimizer``: the workload's ``optim`` with the same memory.

    Raises:
        InputError: an unknown key, a value of the wrong type, or an option that is not modelled. The message starts
            with ``name`` (the file).
    """
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key == "optimizer":
            values["optimizer"] = _optimizer(value, name)
        elif key in READ_SECTIONS:
            section = "bf16" if key == "bfloat16" else key
            value = _with_stage(value) if section == "zero_optimization" else value
            for inner, item in _mapping(value, name, key).items():
                _read(values, section, inner, item, name)
        else:
            _read(values, "", key, value, name)
    return values


def with_zero(document: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """A config with these settings in its section ``zero_optimization``; the rest stays.

    A section that is no mapping stays, too: :func:`written` reports it.
    """
    section = _with_stage(document.get("zero_optimization") or {})
    return {**document, "zero_optimization": {**section, **settings} if isinstance(section, Mapping) else section}


def _with_stage(section: Any) -> Any:
    """The section ``zero_optimization``; the first releases had true and false, which are stages 1 and 0."""
    return {"stage": int(section)} if isinstance(section, bool) else section


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Adds derived keys to the written ones: ``offload``, ``dtype`` if a section decides it, and the degree of tensor
    parallelism, where 0 becomes 1: both turn it off."""
    derived: dict[str, Any] = {}
    enabled = {dtype: config.get(f"{dtype}.enabled") for dtype in ("bf16", "fp16")}
    if True in enabled.values():
        derived["dtype"] = next(dtype for dtype, on in enabled.items() if on is True)
    elif set(enabled.values()) == {False}:
        derived["dtype"] = "fp32"
    if config.get("tensor_parallel.autotp_size") == 0:
        derived["tensor_parallel.autotp_size"] = 1
    states, weights = (offloads(config, what) for what in ("optimizer", "param"))
    if states or weights:
        derived["offload"] = "all" if states and weights else "optimizer" if states else "parameters"
    return {**config, **derived}


def offloads(config: Mapping[str, Any], what: str) -> bool:
    """True if the config keeps ``what`` (``optimizer`` or ``param``) in host memory."""
    return config.get(f"zero_optimization.offload_{what}", {}).get("device", "none") != "none"


def clipping(config: Mapping[str, Any] | None, max_grad_norm: float, given: bool, version: tuple[int, int, int]
             ) -> float:
    """The norm that gradients are clipped to.

    The config's number comes first. The workload's ``max_grad_norm`` counts if there is no config, if the config says
    "auto", or if the user gave it (``given``). Otherwise DeepSpeed's default counts.
    """
    if config is None:
        return max_grad_norm
    value = config.get("gradient_clipping")
    if value == "auto" or (value is None and given):
        return max_grad_norm
    return default("gradient_clipping", version) if value is None else value


def accumulation(config: Mapping[str, Any], dtype: str, version: tuple[int, int, int]) -> tuple[str, bool]:
    """The dtype in which a release accumulates gradients, and whether the config's own dtype is ignored."""
    requested = config.get("data_types.grad_accum_dtype") or dtype
    ignored = requested == "fp32" != dtype and version < FP32_ACCUMULATION_SINCE
    return dtype if ignored else requested, ignored


def communication(config: Mapping[str, Any], dtype: str) -> str:
    """The dtype in which gradients are reduced."""
    return config.get("communication_data_type") or dtype


def batch_sizes(train: int, micro: int | None, accumulation: int | None, ranks: int,
                called: str = "data_parallel_size") -> tuple[int, int]:
    """Micro-batch size and accumulation steps; a missing one is derived as DeepSpeed does.

    Args:
        ranks: number of all GPUs, including tensor parallelism (0.19.8, runtime/config.py,
            ``DeepSpeedConfig.__init__``).
        called: name of ``ranks`` in the message.

    Raises:
        Invalid: ``train`` is not the product of the three.
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
    """Puts one key into ``values``; raises InputError if it is unknown, invalid or not supported."""
    if section == "zero_optimization" and key in NAMES_WITHOUT_PREFIX:
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
            raise NotPredicted(f"{name}: {dotted} is not supported: {REFUSED[section][key]}")
    elif key not in WITHOUT_EFFECT[section]:
        raise InputError(f"{name}: DeepSpeed has no key {quoted(dotted)}{nearest(key, known(section))}")


def _mapping(value: Any, name: str, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{name}: {key} must be a mapping of keys to values, not {quoted(value)}")
    return value


def _optimizer(value: Any, name: str) -> str | None:
    section = _mapping(value, name, "optimizer")
    for key in section:
        if key not in known("optimizer"):
            hint = nearest(key, known("optimizer"))
            raise InputError(f"{name}: DeepSpeed has no key {quoted('optimizer.' + key)}{hint}")
    if section.get("type") is None:
        return None
    try:
        return optimizer_name(section["type"], _mapping(section.get("params") or {}, name, "optimizer.params"))
    except Invalid as error:
        raise InputError(f"{name}: optimizer.type {error}") from None
