"""The engines of a workload, one line each: what each is for, and the settings that are its alone.

What runs each is in ``predictor.engine.engines``, what each was compared with in ``predictor.workload.compared``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.workload import fsdp_keys


@dataclass(frozen=True)
class Entry:
    """One engine.

    Attributes:
        chosen_by: what ``engine`` of a workload says, where that is not its name here: DeepSpeed's stages.
        settings: the key of a workload that is its alone, with the defaults of what that holds.
        several: whether it is for more than one GPU.
        whole: whether every GPU holds what does not train whole; only such engines evaluate.
        notes: what is not modelled of it.
    """

    chosen_by: str | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    several: bool = True
    whole: bool = True
    notes: tuple[str, ...] = ()


DDP_DEFAULTS: Mapping[str, Any] = {"bucket_cap_mb": None, "gradient_as_bucket_view": False}
# ProcessGroupNCCL.cpp, stashed_for_allocator_safety_: a collective's tensors are let go in the next collective after
# its watchdog has seen it complete; the prediction has that done before the buckets are made anew
_STASHED = ("DDP's first bucket holds every gradient; where the host runs ahead of the GPU, it lives on through the "
            "forward that follows the first backward, and the peak may be higher by up to that")
# torch 2.11, nn/parallel/distributed.py, _DDPSink, and reducer.cpp, should_rebuild_buckets. Under the Trainer on
# emulated GPUs (GPT-2, two ranks: fp32 and bf16 autocast, 256 and 1,024 tokens, 4 and 12 layers, with checkpointing and
# with LoRA) it was labels, still there when outputs are cloned, and local_used_map_; the reserved bytes were equal
UNUSED = ("ddp find_unused_parameters: DDP clones the outputs and never makes its buckets anew; measured peaks were "
          "higher by 8 bytes a token and 4 a tensor that trains, reserved bytes the same")
_AUTOCAST = ("accelerate's mixed_precision runs the forward under autocast besides, and makes its outputs fp32: of it "
             "only what fully_shard casts (param_dtype) is predicted")

ENGINES: dict[str, Entry] = {
    "torch": Entry(several=False),
    "ddp": Entry(settings={"ddp": DDP_DEFAULTS}, notes=(_STASHED,)),
    "fsdp2": Entry(settings={"fsdp": fsdp_keys.DEFAULTS}, whole=False, notes=(_AUTOCAST,)),
    "zero0": Entry("deepspeed"),
    "zero1": Entry("deepspeed"),
    "zero2": Entry("deepspeed"),
    "zero3": Entry("deepspeed", whole=False),
}
"""Name, as :func:`name_of` gives it, -> engine."""


def name_of(engine: str, zero_stage: int | None) -> str:
    """Of a workload's ``engine`` and ``zero_stage``."""
    return f"zero{zero_stage}" if engine == "deepspeed" else engine


def choices() -> tuple[str, ...]:
    """What ``engine`` of a workload may say."""
    return tuple(dict.fromkeys(entry.chosen_by or name for name, entry in ENGINES.items()))
