"""Which values of other keys a feature was compared with on a GPU, real or emulated: no other is predicted with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from predictor.common.errors import InputError
from predictor.common.suggest import show
from predictor.common.values import thaw
from predictor.workload import code_names, quantization_keys
from predictor.workload.engines import BF16, ENGINES, name_of

if TYPE_CHECKING:
    from predictor.workload.workload import Workload

OWN_CODE = {"recipe": ("finetune", "full"), "lora": (None,), "quantization": (None,), "padding": ("none",),
            "image_size": (None,), "use_liger_kernel": (False,), "attn_implementation": ("sdpa",),
            "engine": ("torch", "ddp", "deepspeed"), "offload": (None,), "gradient_checkpointing": (False,),
            "tensor_parallel_size": (1,)}
SHARDED_LAYERS = {
    "engine": ("torch", "ddp", "deepspeed"), "recipe": ("finetune", "pretrain", "full"),
    "mixed_precision": ("none", "bf16"),
    "optim": ("adamw_torch_fused", "adamw_torch", "adamw_torch_forloop"), "attn_implementation": ("sdpa", "eager"),
    "use_liger_kernel": (False,)}
FEATURES: dict[str, tuple[Callable[[Workload], Any], Mapping[str, tuple]]] = {
    "quantization": (lambda w: w.quantization is not None, quantization_keys.COMPARED),
    "a model from code": (lambda w: code_names.is_named(w.model), OWN_CODE),
    "offload": (lambda w: w.offload, BF16),
    "gradient_checkpointing_kwargs offload": (
        lambda w: w.gradient_checkpointing and w.gradient_checkpointing_kwargs.get("offload"),
        BF16 | {"engine": ("torch", "ddp", "deepspeed"), "use_liger_kernel": (False,)}),
    "use_liger_kernel": (lambda w: w.use_liger_kernel, BF16 | {"offload": (None,)}),
    "flash_attention_2": (lambda w: w.attn_implementation == "flash_attention_2", BF16 | {"offload": (None,)}),
    "tensor_parallel_size": (lambda w: w.tensor_parallel_size > 1, SHARDED_LAYERS),
    "tensor_parallel_size and engine ddp": (lambda w: w.tensor_parallel_size > 1 and w.engine == "ddp",
                                            {"mixed_precision": ("none",), "per_device_eval_batch_size": (None,)}),
    "tensor_parallel_size and engine deepspeed": (lambda w: w.autotp, {
        "zero_stage": (0, 1, 2), "offload": (None,), "mixed_precision": ("none",)}),
    "mode inference": (lambda w: w.mode == "inference", {"video_frames": (None,)}),
    "mode inference and quantization": (lambda w: w.mode == "inference" and w.quantization is not None,
                                        {"dtype": ("bf16", "fp16"), "gpu_memory_utilization": (None,)}),
    "per_device_eval_batch_size": (lambda w: w.evaluates, {
        "use_liger_kernel": (False,), "attn_implementation": ("sdpa", "eager")}),
} | {
    f"zero_stage {name.removeprefix('zero')}" if entry.chosen_by else f"engine {name}":
        (lambda w, name=name: name_of(w.engine, w.zero_stage) == name, entry.compared)
    for name, entry in ENGINES.items()
}
"""Name -> whether a workload has it, and the values that other keys may have then, by key."""


def goes_with(feature: str, keys: Mapping[str, Any]) -> bool:
    """Whether a feature of the table was compared with these keys of a workload; those that are not there count not."""
    return all(keys[name] in seen for name, seen in FEATURES[feature][1].items() if name in keys)


def check(workload: Workload) -> None:
    """Refuses a prediction of what was not compared.

    Raises:
        InputError: two keys that do not go together yet.
    """
    recomputes = workload.gradient_checkpointing
    for feature, (has, compared) in FEATURES.items():
        for name, seen in compared.items() if has(workload) else ():
            if getattr(workload, name) not in seen and (recomputes or not name.startswith("gradient_checkpointing")):
                value = thaw(getattr(workload, name))
                said = name if len(str(value)) > 80 else f"{name} {show(value, 80)}"
                raise InputError(f"{said}: not predicted with {feature} yet: leave one of them out, or use peakcast "
                                 "learn")
