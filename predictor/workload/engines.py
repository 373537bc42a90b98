"""Table of the engines: torch, DDP, FSDP1, FSDP2 and DeepSpeed's ZeRO stages, with their own settings.

``predictor.engine.engines`` implements them; ``predictor.workload.compared`` lists the combinations that each was
compared in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.workload import fsdp1_keys, fsdp_keys


@dataclass(frozen=True)
class Entry:
    """One engine of the table.

    Attributes:
        chosen_by: value of the workload's ``engine``, where it differs from the name here (DeepSpeed's stages).
        settings: key of a workload that only this engine has -> the defaults of its entries.
        several: true if the engine may use more than one GPU.
        whole: true if every GPU holds all frozen parameters whole; only such engines may run an evaluation.
        communicators: NCCL communicators among data-parallel ranks.
        notes: what is not modelled of this engine.
    """

    chosen_by: str | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    several: bool = True
    whole: bool = True
    communicators: int = 1
    notes: tuple[str, ...] = ()


DDP_DEFAULTS: Mapping[str, Any] = {"bucket_cap_mb": None, "gradient_as_bucket_view": False}
# ProcessGroupNCCL.cpp, stashed_for_allocator_safety_: a collective's tensors are released in the next collective after
# the watchdog has seen it complete. The prediction releases them before the buckets are rebuilt.
_STASHED = ("DDP's first bucket holds every gradient; where the host runs ahead of the GPU, it lives on through the "
            "forward that follows the first backward, and the peak may be higher by up to that")
# torch 2.11, nn/parallel/distributed.py, _DDPSink. Under the Trainer on emulated GPUs (GPT-2, two ranks: fp32 and bf16
# autocast, 256 and 1,024 tokens, 4 and 12 layers, with checkpointing and with LoRA) the difference was the labels,
# still alive when the outputs are cloned. The reserved bytes were equal.
UNUSED_PARAMETERS_NOTE = ("ddp find_unused_parameters: DDP clones the outputs; measured peaks were higher by 8 bytes a "
                          "token, reserved bytes the same")
_AUTOCAST = ("accelerate's mixed_precision runs the forward under autocast besides, and makes its outputs fp32: of it "
             "only what fully_shard casts (param_dtype) is predicted")

# DeepSpeed 0.19.8, utils/groups.py, _clone_world_group: ZeRO's collectives have a group of their own beside the one
# of the world, which barriers and checks use.
_OWN_AND_WORLD = 2
ENGINES: dict[str, Entry] = {
    "torch": Entry(several=False),
    "ddp": Entry(settings={"ddp": DDP_DEFAULTS}, notes=(_STASHED,)),
    "fsdp1": Entry(settings={"fsdp1": fsdp1_keys.DEFAULTS}, whole=False),
    "fsdp2": Entry(settings={"fsdp": fsdp_keys.DEFAULTS}, whole=False, notes=(_AUTOCAST,)),
    "zero0": Entry("deepspeed", communicators=_OWN_AND_WORLD),
    "zero1": Entry("deepspeed", communicators=_OWN_AND_WORLD),
    "zero2": Entry("deepspeed", communicators=_OWN_AND_WORLD),
    "zero3": Entry("deepspeed", communicators=_OWN_AND_WORLD, whole=False),
}
"""Name of an engine, as from :func:`name_of` -> its entry."""


def name_of(engine: str, zero_stage: int | None) -> str:
    """The engine's name in :data:`ENGINES`, from a workload's ``engine`` and ``zero_stage``."""
    return f"zero{zero_stage}" if engine == "deepspeed" else engine


def choices() -> tuple[str, ...]:
    """The values that a workload's ``engine`` may have."""
    return tuple(dict.fromkeys(entry.chosen_by or name for name, entry in ENGINES.items()))


def communicators(engine: str, data_parallel_size: int, tensor_parallel_size: int) -> int:
    """NCCL communicators that a rank uses; of an engine that is not in the table, such as a learned script's, the most
    that one of the table has."""
    most = max(entry.communicators for entry in ENGINES.values())
    among_data = ENGINES[engine].communicators if engine in ENGINES else most
    return (among_data if data_parallel_size > 1 else 0) + (1 if tensor_parallel_size > 1 else 0)
