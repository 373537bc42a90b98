"""Reads the ZeRO settings of a DeepSpeed config as DeepSpeed and Hugging Face's integration do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from predictor.common.errors import InputError
from predictor.common.releases import release
from predictor.workload import contradictions, deepspeed_settings
from predictor.workload.deepspeed_releases import default
from predictor.workload.workload_draft import of_config

if TYPE_CHECKING:
    from predictor.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class ZeroConfig:
    """ZeRO's settings with every default filled in. Bucket sizes and thresholds are in elements.

    Attributes:
        version: DeepSpeed release as three numbers.
        grad_accum_dtype: dtype in which that release accumulates gradients, which may differ from the config.
        notes: lines for the user about settings without effect, or that make a measurement misleading.
    """

    stage: int
    contiguous_gradients: bool
    overlap_comm: bool
    reduce_scatter: bool
    reduce_bucket_size: int
    allgather_bucket_size: int
    round_robin_gradients: bool
    use_multi_rank_bucket_allreduce: bool
    check_grad_overflow: bool
    compute_grad_norm: bool
    gradient_clipping: float
    grad_accum_dtype: str
    communication_data_type: str
    gradient_accumulation_steps: int
    train_micro_batch_size_per_gpu: int = field(compare=False)  # it does not change what the engine allocates
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
    """The settings of a DeepSpeed config that change memory, by dotted key; "auto" stays if Hugging Face fills it in.

    Three sections become one value each: the optimizer section ``optimizer`` (the workload's ``optim`` with the same
    memory), the offload sections ``offload``, and the fp16 and bf16 sections ``dtype``, if they decide the dtype.

    Raises:
        InputError: an unknown key, a value of the wrong type, an option that is not modelled, or
            values that contradict each other. The message starts with ``name`` (the file).
    """
    draft = of_config(document, name)
    contradictions.check(draft, contradictions.IN_A_DEEPSPEED_CONFIG)
    return dict(draft.settings)


def read(workload: Workload, hidden_size: int) -> ZeroConfig:
    """The ZeRO settings of a workload whose engine is ``deepspeed``.

    Args:
        workload: a checked workload: its DeepSpeed config agrees with its other keys and with its release.
        hidden_size: of the language model. Hugging Face fills "auto" bucket sizes with its square. 0: unknown.

    Raises:
        InputError: a bucket size is "auto", and the model has no hidden size.
    """
    settings = _Settings(workload, hidden_size)
    value = settings.value
    offloads_states, dtype, stage = workload.offload in ("optimizer", "all"), workload.dtype, workload.zero_stage
    assert stage is not None  # a workload with the engine deepspeed has a stage
    return ZeroConfig(
        stage=stage,
        contiguous_gradients=value("contiguous_gradients") or (offloads_states and stage < 3),
        overlap_comm=settings.overlaps(),
        reduce_scatter=value("reduce_scatter"),
        reduce_bucket_size=settings.by_width("reduce_bucket_size", hidden_size * hidden_size),
        allgather_bucket_size=value("allgather_bucket_size"),
        round_robin_gradients=value("round_robin_gradients"),
        use_multi_rank_bucket_allreduce=value("use_multi_rank_bucket_allreduce"),
        check_grad_overflow=value("check_grad_overflow", "bf16.") if dtype == "bf16" else dtype == "fp16",
        compute_grad_norm=value("compute_grad_norm"),
        gradient_clipping=settings.clipping(),
        grad_accum_dtype=settings.accumulation()[0],
        communication_data_type=deepspeed_settings.communication(settings.written, dtype),
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
        self.short_form = workload.deepspeed is None  # only zero_stage was given
        self.written = {} if workload.deepspeed is None else parse(workload.deepspeed, workload.deepspeed_name)

    def value(self, name: str, section: str = "zero_optimization.") -> Any:
        value = self.written.get(section + name)
        return default(name, self.version) if value is None else value

    def by_width(self, name: str, auto: int) -> int:
        """A size in elements; "auto" becomes the number that Hugging Face derives from the hidden size."""
        value: Any = "auto" if self.short_form else self.value(name)
        used = self.workload.zero_stage == 3 or not name.startswith("stage3_")
        if value == "auto" and not self.hidden_size and used:
            # as transformers 5.17 stops (integrations/deepspeed.py, trainer_config_finalize)
            raise InputError(f"{self.workload.deepspeed_name}: {name} is filled in by the model's hidden_size, and "
                             "this model has none: give the number in a DeepSpeed config")
        return auto if value == "auto" else value

    def overlaps(self) -> bool:
        if self.written.get("zero_optimization.overlap_comm") is None and not self.short_form:
            return self.workload.zero_stage == 3
        return self.value("overlap_comm")

    def clipping(self) -> float:
        return deepspeed_settings.clipping(None if self.short_form else self.written, self.workload.max_grad_norm,
                                           "max_grad_norm" not in self.workload.filled_in, self.version)

    def accumulation(self) -> tuple[str, bool]:
        return deepspeed_settings.accumulation(self.written, self.workload.dtype, self.version)

    def notes(self) -> tuple[str, ...]:
        notes = {
            "data_types.grad_accum_dtype fp32 has no effect in ZeRO stage 2 before DeepSpeed 0.19.8":
                self.accumulation()[1],
            "deepspeed.zero.Init: start-up is predicted as if the whole model were on the GPU before it is partitioned":
                self.workload.zero_stage == 3,
            "memory_breakdown resets PyTorch's peak counters: a peak measured with it is too low":
                self.written.get("memory_breakdown")}
        return tuple(note for note, holds in notes.items() if holds)

    def pins(self, what: str) -> bool:
        offloading = self.written.get(f"zero_optimization.offload_{what}", {})
        return offloading.get("pin_memory", default("pin_memory", self.version))

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
