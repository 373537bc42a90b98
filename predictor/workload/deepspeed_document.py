"""Writes the DeepSpeed config of a workload."""

from __future__ import annotations

from typing import Any

from predictor.common.value_types import thaw
from predictor.workload import deepspeed_config
from predictor.workload.deepspeed_config import ZeroConfig
from predictor.workload.workload import Workload

ALL_STAGES = ("reduce_bucket_size", "allgather_bucket_size", "contiguous_gradients", "overlap_comm", "reduce_scatter",
              "round_robin_gradients")
STAGE_3 = {"stage3_prefetch_bucket_size": "prefetch_bucket_size", "sub_group_size": "sub_group_size",
           "stage3_param_persistence_threshold": "param_persistence_threshold"}


def document(workload: Workload, hidden_size: int) -> dict[str, Any] | None:
    """A DeepSpeed config with all numbers filled in, for the same memory as the workload; None for other engines.

    A config of the user's is kept, with only its batch sizes changed.

    Args:
        hidden_size: hidden size of the language model, from which DeepSpeed computes "auto" values.
    """
    if workload.engine != "deepspeed":
        return None
    shape = {"train_micro_batch_size_per_gpu": workload.per_device_train_batch_size,
             "gradient_accumulation_steps": workload.gradient_accumulation_steps}
    if workload.deepspeed is not None:
        given = thaw(workload.deepspeed)
        given.pop("train_batch_size", None)
        return given | shape
    settings = deepspeed_config.read(workload, hidden_size)
    written = {"bf16": {"enabled": workload.dtype == "bf16"}, "fp16": {"enabled": workload.dtype == "fp16"}, **shape,
               "gradient_clipping": workload.max_grad_norm, "zero_allow_untested_optimizer": True,
               "zero_optimization": {"stage": settings.stage} | (_zero(settings) if settings.stage else {})}
    if workload.autotp:
        written["tensor_parallel"] = {"autotp_size": workload.tensor_parallel_size}
    if workload.offload:  # DeepSpeed requires this if Hugging Face builds the optimizer
        written["zero_force_ds_cpu_optimizer"] = False
    return written


def _zero(settings: ZeroConfig) -> dict[str, Any]:
    section = {name: getattr(settings, name) for name in ALL_STAGES}
    if settings.stage == 3:
        section = section | {theirs: getattr(settings, ours) for theirs, ours in STAGE_3.items()}
    for name, is_on in (("offload_optimizer", settings.offload_optimizer), ("offload_param", settings.offload_param)):
        if is_on:
            section[name] = {"device": "cpu", "pin_memory": True}
    return section
