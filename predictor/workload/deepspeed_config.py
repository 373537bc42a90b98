"""What a DeepSpeed config says about ZeRO, read as DeepSpeed and Hugging Face's integration read it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from predictor.common.errors import InputError
from predictor.common.suggest import nearest, show
from predictor.common.values import Invalid
from predictor.workload.deepspeed_keys import (
    FILLED_BY_HUGGING_FACE,
    PLAIN_NAMES,
    READ,
    REFUSED,
    REFUSED_IN_STAGE_3,
    WITHOUT_EFFECT,
    is_on,
    known,
    optimizer_name,
)

if TYPE_CHECKING:
    from predictor.workload.workload import Workload

# Defaults by the first DeepSpeed release that has them (found by running each release).
DEFAULTS: dict[str, tuple[tuple[tuple[int, int, int], Any], ...]] = {
    "gradient_clipping": (((0, 0, 0), 0.0), ((0, 19, 3), 1.0)),
    "check_grad_overflow": (((0, 0, 0), False), ((0, 19, 3), True)),
    "contiguous_gradients": (((0, 0, 0), True),),
    "overlap_comm": (((0, 0, 0), False),),  # DeepSpeed's None means stage 3 only
    "reduce_scatter": (((0, 0, 0), True),),
    "reduce_bucket_size": (((0, 0, 0), 500_000_000),),
    "allgather_bucket_size": (((0, 0, 0), 500_000_000),),
    "round_robin_gradients": (((0, 0, 0), False),),
    "use_multi_rank_bucket_allreduce": (((0, 0, 0), True),),
    "parameter_alignment": (((0, 0, 0), False),),
    "compute_grad_norm": (((0, 0, 0), True),),
    "sub_group_size": (((0, 0, 0), 1_000_000_000),),
    "stage3_prefetch_bucket_size": (((0, 0, 0), 50_000_000),),
    "stage3_param_persistence_threshold": (((0, 0, 0), 100_000),),
    "stage3_model_persistence_threshold": (((0, 0, 0), sys.maxsize),),
    "stage3_max_live_parameters": (((0, 0, 0), 1_000_000_000),),
    "stage3_max_reuse_distance": (((0, 0, 0), 1_000_000_000),),
    "stage3_allgather_sequential": (((0, 0, 0), False),),
}
# Options by the first release that knows them; earlier ones stop with an error.
SINCE = {
    "bf16.check_grad_overflow": (0, 17, 1),
    "zero_optimization.parameter_alignment": (0, 19, 7),
    "zero_optimization.compute_grad_norm": (0, 19, 7),
}
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
OTHER_DTYPES_SINCE = (0, 19, 8)  # fp16 and fp32 were compared with this release
AUTOTP_SINCE = (0, 19, 8)  # earlier releases shard otherwise
FP32_ACCUMULATION_SINCE = (0, 19, 8)  # earlier releases accept it in stage 2 and accumulate in bf16


@dataclass(frozen=True, kw_only=True)
class ZeroConfig:
    """ZeRO's settings with every default filled in; bucket sizes in elements.

    ``version`` is the DeepSpeed release as three numbers. ``grad_accum_dtype`` is what that release
    really does. ``notes`` are lines for the user about settings that make a measurement misleading.
    """

    stage: int
    contiguous_gradients: bool
    overlap_comm: bool
    reduce_scatter: bool
    reduce_bucket_size: int
    allgather_bucket_size: int
    round_robin_gradients: bool
    use_multi_rank_bucket_allreduce: bool
    parameter_alignment: bool
    check_grad_overflow: bool
    compute_grad_norm: bool
    gradient_clipping: float
    grad_accum_dtype: str
    communication_data_type: str
    gradient_accumulation_steps: int
    train_micro_batch_size_per_gpu: int = field(compare=False)  # engines compose alike at every one
    dtype: str
    version: tuple[int, int, int]
    notes: tuple[str, ...] = ()
    sub_group_size: int = 1_000_000_000
    prefetch_bucket_size: int = 50_000_000
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int = sys.maxsize
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    allgather_sequential: bool = False
    offload_optimizer: bool = False
    offload_param: bool = False
    pins_states: bool = True
    pins_weights: bool = True


def read(workload: Workload, hidden_size: int) -> ZeroConfig:
    """The ZeRO settings of a workload whose engine is ``deepspeed``.

    Args:
        workload: validated, so its DeepSpeed config agrees with its other keys.
        hidden_size: of the language model; "auto" buckets hold its square, as Hugging Face fills them.

    Raises:
        InputError: an option that this DeepSpeed release does not have or would stop at.
    """
    version = release(workload.versions["deepspeed"])
    short_form = workload.deepspeed is None
    settings = {} if short_form else parse(workload.deepspeed, workload.deepspeed_name)

    def setting(name: str, section: str = "zero_optimization.") -> Any:
        value = settings.get(section + name)
        return default(name, version) if value is None else value

    def by_width(name: str, auto: int) -> int:
        value = "auto" if short_form else setting(name)
        if value == "auto" and not hidden_size and (workload.zero_stage == 3 or not name.startswith("stage3_")):
            # as transformers 5.17 stops (integrations/deepspeed.py, trainer_config_finalize)
            raise InputError(f"{workload.deepspeed_name}: {name} is filled in by the model's hidden_size, and this "
                             "model has none: give the number in a DeepSpeed config")
        return auto if value == "auto" else value

    overlap = setting("overlap_comm")
    if settings.get("zero_optimization.overlap_comm") is None and not short_form:
        overlap = workload.zero_stage == 3
    clipping = settings.get("gradient_clipping")
    if short_form or clipping == "auto" or (clipping is None and "max_grad_norm" not in workload.filled_in):
        clipping = workload.max_grad_norm
    elif clipping is None:
        clipping = default("gradient_clipping", version)
    _check(settings, version, clipping, workload.dtype, workload.deepspeed_name)
    offloads_states = workload.offload in ("optimizer", "all")
    if offloads_states and not setting("compute_grad_norm"):
        raise InputError(f"{workload.deepspeed_name}: zero_optimization.compute_grad_norm false does not go with "
                         "offload_optimizer: leave it out")
    if workload.autotp and version < AUTOTP_SINCE:
        raise InputError("versions: tensor_parallel_size with DeepSpeed (AutoTP) is predicted for DeepSpeed "
                         f"{'.'.join(map(str, AUTOTP_SINCE))} and later")
    dtype, notes = workload.dtype, ()
    accumulation = settings.get("data_types.grad_accum_dtype") or dtype
    if accumulation == "fp32" != dtype and version < FP32_ACCUMULATION_SINCE:
        accumulation = dtype
        notes += ("data_types.grad_accum_dtype fp32 has no effect in ZeRO stage 2 before DeepSpeed 0.19.8",)
    if workload.zero_stage == 3:
        notes += ("deepspeed.zero.Init: start-up is that of a model that lies whole on the GPU, then is partitioned",)
    if settings.get("memory_breakdown"):
        notes += ("memory_breakdown resets PyTorch's peak counters: a peak measured with it is too low",)
    return ZeroConfig(
        stage=workload.zero_stage,
        contiguous_gradients=setting("contiguous_gradients") or (offloads_states and workload.zero_stage < 3),
        overlap_comm=overlap,
        reduce_scatter=setting("reduce_scatter"),
        reduce_bucket_size=by_width("reduce_bucket_size", hidden_size * hidden_size),
        allgather_bucket_size=setting("allgather_bucket_size"),
        round_robin_gradients=setting("round_robin_gradients"),
        use_multi_rank_bucket_allreduce=setting("use_multi_rank_bucket_allreduce"),
        parameter_alignment=setting("parameter_alignment"),
        check_grad_overflow=setting("check_grad_overflow", "bf16.") if dtype == "bf16" else dtype == "fp16",
        compute_grad_norm=setting("compute_grad_norm"),
        gradient_clipping=clipping,
        grad_accum_dtype=accumulation,
        communication_data_type=settings.get("communication_data_type") or dtype,
        gradient_accumulation_steps=workload.gradient_accumulation_steps,
        train_micro_batch_size_per_gpu=workload.per_device_train_batch_size,
        dtype=dtype,
        version=version,
        notes=notes,
        sub_group_size=setting("sub_group_size"),
        prefetch_bucket_size=by_width("stage3_prefetch_bucket_size", int(0.9 * hidden_size * hidden_size)),
        param_persistence_threshold=by_width("stage3_param_persistence_threshold", 10 * hidden_size),
        model_persistence_threshold=setting("stage3_model_persistence_threshold"),
        max_live_parameters=setting("stage3_max_live_parameters"),
        max_reuse_distance=setting("stage3_max_reuse_distance"),
        allgather_sequential=setting("stage3_allgather_sequential"),
        offload_optimizer=offloads_states,
        offload_param=workload.offload in ("parameters", "all"),
        pins_states=settings.get("zero_optimization.offload_optimizer", {}).get("pin_memory", True),
        pins_weights=settings.get("zero_optimization.offload_param", {}).get("pin_memory", True),
    )


def parse(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values that matter, by dotted key; "auto" stays where Hugging Face would fill it in.

    The optimizer section becomes one value, ``optimizer``: the workload's ``optim`` of the same memory. So do those of
    what is offloaded, ``offload``, and the fp16 and bf16 sections, ``dtype``, if they settle it.

    Raises:
        InputError: an unknown key, a value of the wrong kind, an option that is not modelled, or
            values that contradict each other. ``name`` (the file) is put in front.
    """
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key == "optimizer":
            values["optimizer"] = _optimizer(value, name)
        elif key in ("zero_optimization", "bf16", "bfloat16", "fp16", "data_types", "tensor_parallel"):
            section = "bf16" if key == "bfloat16" else key
            if section == "zero_optimization" and isinstance(value, bool):
                value = {"stage": int(value)}  # the form of the first releases
            for inner, item in _mapping(value, name, key).items():
                _read(values, section, inner, item, name)
        else:
            _read(values, "", key, value, name)
    _agree(values, name)
    states, weights = (values.get(f"zero_optimization.offload_{what}", {}).get("device", "none") != "none"
                       for what in ("optimizer", "param"))
    if weights and values["zero_optimization.stage"] != 3:
        raise InputError(f"{name}: zero_optimization.offload_param needs stage 3: remove it")
    _check_autotp(values, name)
    if states or weights:
        values["offload"] = "all" if states and weights else "optimizer" if states else "parameters"
    if values["zero_optimization.stage"] == 0 and values.get("optimizer") == "adamw_torch_fused":
        raise InputError(f"{name}: the optimizer section makes DeepSpeed's FusedAdam, which is not supported yet in "
                         "stage 0: leave the section out, or add torch_adam true to its params")
    if values["zero_optimization.stage"] == 3:
        _refuse_in_stage_3(document["zero_optimization"], name)
    if values["zero_optimization.stage"] == 1 and document.get("managed_gradient_accumulation") is False:
        raise InputError(f"{name}: managed_gradient_accumulation false is not supported in stage 1: gradients would be "
                         "reduced in step()")
    return values


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


def release(version: str) -> tuple[int, int, int]:
    """``"0.19.8+cu130"`` as ``(0, 19, 8)``."""
    major, minor, patch = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version).groups()
    return int(major), int(minor), int(patch or 0)


def default(name: str, version: tuple[int, int, int]) -> Any:
    """What DeepSpeed of that release takes when the config does not say."""
    return [value for since, value in DEFAULTS[name] if since <= version][-1]


def _check(settings: Mapping[str, Any], version: tuple[int, int, int], clipping: float, dtype: str,
           name: str) -> None:
    """What this DeepSpeed release would stop at."""
    for key, since in SINCE.items():
        if settings.get(key) is not None and version < since:
            first, ours = (".".join(map(str, numbers)) for numbers in (since, version))
            raise InputError(f"{name}: {key} exists since DeepSpeed {first}, and versions.deepspeed is {ours}: "
                             "remove it or change the version")
    if settings.get("zero_optimization.compute_grad_norm") is False \
            and settings["zero_optimization.stage"] not in (1, 2):
        raise InputError(f"{name}: zero_optimization.compute_grad_norm false needs stage 1 or 2: leave it out")
    if settings.get("zero_optimization.compute_grad_norm") is False and clipping:
        raise InputError(f"{name}: zero_optimization.compute_grad_norm false needs gradient_clipping 0, "
                         f"not {clipping:g}")
    if dtype != "bf16" and version < OTHER_DTYPES_SINCE:
        raise InputError(f"versions: dtype {dtype} is predicted for DeepSpeed "
                         f"{'.'.join(map(str, OTHER_DTYPES_SINCE))} and later")
    if settings.get("data_types.param_dtype", dtype) != dtype:
        raise InputError(f"{name}: data_types.param_dtype is {settings['data_types.param_dtype']}, but dtype is "
                         f"{dtype}: leave it out")


def _read(values: dict[str, Any], section: str, key: str, value: Any, name: str) -> None:
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


def _refuse_in_stage_3(section: Mapping[str, Any], name: str) -> None:
    for key, harmless in REFUSED_IN_STAGE_3.items():
        for written in (key, key.removeprefix("stage3_")):
            if section.get(written, harmless) not in (harmless, None, "auto"):
                raise InputError(f"{name}: zero_optimization.{written} {show(section[written])} is not supported in "
                                 "stage 3: what it does to memory is not modelled yet")


def _check_autotp(values: dict[str, Any], name: str) -> None:
    """The degree, also as transformers has ``tp_model_init`` put it in; 0 switches it off, as 1 does."""
    size = values.get("tensor_parallel.autotp_size")
    again = values.get("tensor_parallel.tp", {"tp_size": 1})["tp_size"]
    if again not in (1, size):
        raise InputError(f"{name}: tensor_parallel.tp.tp_size is {again}, but tensor_parallel.autotp_size "
                         f"{'is not given' if size is None else f'is {size}'}: leave tp out")
    if size == 0:
        values["tensor_parallel.autotp_size"] = 1


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


def _agree(values: dict[str, Any], name: str) -> None:
    """Contradictions inside one config."""
    if values.get("bf16.enabled") is True and values.get("fp16.enabled") is True:
        raise InputError(f"{name}: bf16.enabled and fp16.enabled are both true: keep one")
    enabled = {dtype: values.get(f"{dtype}.enabled") for dtype in ("bf16", "fp16")}
    if True in enabled.values():
        values["dtype"] = next(dtype for dtype, on in enabled.items() if on is True)
    elif set(enabled.values()) == {False}:
        values["dtype"] = "fp32"
    if values.get("zero_optimization.stage") is None:
        raise InputError(f"{name}: zero_optimization.stage is not given")
