"""What a DeepSpeed config says about ZeRO, read as DeepSpeed and Hugging Face's integration read it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from predictor.common.errors import InputError
from predictor.workload import contradictions, deepspeed_settings
from predictor.workload.deepspeed_releases import FP32_ACCUMULATION_SINCE, default, release
from predictor.workload.workload_draft import of_config

if TYPE_CHECKING:
    from predictor.workload.workload import Workload


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


def parse(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values that matter, by dotted key; "auto" stays where Hugging Face would fill it in.

    The optimizer section becomes one value, ``optimizer``: the workload's ``optim`` of the same memory. So do those of
    what is offloaded, ``offload``, and the fp16 and bf16 sections, ``dtype``, if they settle it.

    Raises:
        InputError: an unknown key, a value of the wrong kind, an option that is not modelled, or
            values that contradict each other. ``name`` (the file) is put in front.
    """
    case = of_config(document, name)
    contradictions.check(case, contradictions.IN_A_DEEPSPEED_CONFIG)
    return dict(case.settings)


def read(workload: Workload, hidden_size: int) -> ZeroConfig:
    """The ZeRO settings of a workload whose engine is ``deepspeed``.

    Args:
        workload: validated, so its DeepSpeed config agrees with its other keys, and its release has every option.
        hidden_size: of the language model; "auto" buckets hold its square, as Hugging Face fills them.

    Raises:
        InputError: a bucket that only a hidden size could fill in.
    """
    settings = _Settings(workload, hidden_size)
    value = settings.value
    offloads_states, dtype = workload.offload in ("optimizer", "all"), workload.dtype
    return ZeroConfig(
        stage=workload.zero_stage,
        contiguous_gradients=value("contiguous_gradients") or (offloads_states and workload.zero_stage < 3),
        overlap_comm=settings.overlaps(),
        reduce_scatter=value("reduce_scatter"),
        reduce_bucket_size=settings.by_width("reduce_bucket_size", hidden_size * hidden_size),
        allgather_bucket_size=value("allgather_bucket_size"),
        round_robin_gradients=value("round_robin_gradients"),
        use_multi_rank_bucket_allreduce=value("use_multi_rank_bucket_allreduce"),
        parameter_alignment=value("parameter_alignment"),
        check_grad_overflow=value("check_grad_overflow", "bf16.") if dtype == "bf16" else dtype == "fp16",
        compute_grad_norm=value("compute_grad_norm"),
        gradient_clipping=settings.clipping(),
        grad_accum_dtype=settings.accumulation()[0],
        communication_data_type=settings.said.get("communication_data_type") or dtype,
        gradient_accumulation_steps=workload.gradient_accumulation_steps,
        train_micro_batch_size_per_gpu=workload.per_device_train_batch_size,
        dtype=dtype,
        version=settings.version,
        notes=settings.notes(),
        offload_optimizer=offloads_states,
        offload_param=workload.offload in ("parameters", "all"),
        pins_states=settings.pins("optimizer"),
        pins_weights=settings.pins("param"),
        **settings.of_stage_3(),
    )


class _Settings:
    """The settings of a workload's DeepSpeed config, with the defaults of its release."""

    def __init__(self, workload: Workload, hidden_size: int) -> None:
        self.workload, self.hidden_size = workload, hidden_size
        self.version = release(workload.versions["deepspeed"])
        self.short_form = workload.deepspeed is None
        self.said = {} if self.short_form else parse(workload.deepspeed, workload.deepspeed_name)

    def value(self, name: str, section: str = "zero_optimization.") -> Any:
        value = self.said.get(section + name)
        return default(name, self.version) if value is None else value

    def by_width(self, name: str, auto: int) -> int:
        """A size that is ``auto`` where the model's width decides it."""
        value = "auto" if self.short_form else self.value(name)
        used = self.workload.zero_stage == 3 or not name.startswith("stage3_")
        if value == "auto" and not self.hidden_size and used:
            # as transformers 5.17 stops (integrations/deepspeed.py, trainer_config_finalize)
            raise InputError(f"{self.workload.deepspeed_name}: {name} is filled in by the model's hidden_size, and "
                             "this model has none: give the number in a DeepSpeed config")
        return auto if value == "auto" else value

    def overlaps(self) -> bool:
        if self.said.get("zero_optimization.overlap_comm") is None and not self.short_form:
            return self.workload.zero_stage == 3
        return self.value("overlap_comm")

    def clipping(self) -> float:
        return deepspeed_settings.clipping(None if self.short_form else self.said, self.workload.max_grad_norm,
                                           "max_grad_norm" not in self.workload.filled_in, self.version)

    def accumulation(self) -> tuple[str, bool]:
        """The dtype in which this release adds gradients up, and whether it is another than the config says."""
        dtype = self.workload.dtype
        wanted = self.said.get("data_types.grad_accum_dtype") or dtype
        ignored = wanted == "fp32" != dtype and self.version < FP32_ACCUMULATION_SINCE
        return dtype if ignored else wanted, ignored

    def notes(self) -> tuple[str, ...]:
        notes = {
            "data_types.grad_accum_dtype fp32 has no effect in ZeRO stage 2 before DeepSpeed 0.19.8":
                self.accumulation()[1],
            "deepspeed.zero.Init: start-up is that of a model that lies whole on the GPU, then is partitioned":
                self.workload.zero_stage == 3,
            "memory_breakdown resets PyTorch's peak counters: a peak measured with it is too low":
                self.said.get("memory_breakdown")}
        return tuple(note for note, holds in notes.items() if holds)

    def pins(self, what: str) -> bool:
        return self.said.get(f"zero_optimization.offload_{what}", {}).get("pin_memory", True)

    def of_stage_3(self) -> dict[str, Any]:
        return {
            "sub_group_size": self.value("sub_group_size"),
            "prefetch_bucket_size": self.by_width("stage3_prefetch_bucket_size",
                                                  int(0.9 * self.hidden_size * self.hidden_size)),
            "param_persistence_threshold": self.by_width("stage3_param_persistence_threshold", 10 * self.hidden_size),
            "model_persistence_threshold": self.value("stage3_model_persistence_threshold"),
            "max_live_parameters": self.value("stage3_max_live_parameters"),
            "max_reuse_distance": self.value("stage3_max_reuse_distance"),
            "allgather_sequential": self.value("stage3_allgather_sequential")}
