"""The engines, one line each: to add one, write its file and its line in :data:`ENGINES`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from predictor import fsdp

if TYPE_CHECKING:  # workloads are checked against this table, without what runs them
    import numpy as np

    from predictor.engine.setup import Setup
    from predictor.events import EventList
    from predictor.formula import MicroStep


class Engine(Protocol):
    """A run under an engine, independent of the shape: what its ranks share is worked out once."""

    def rank(self, rank: int) -> EventList:
        """Start-up and three steps of one rank."""

    def part(self, rank: int) -> Hashable:
        """All that the events of a rank depend on: ranks of which it is equal allocate and free alike."""

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[tuple[int, int]]:
        """Peak requested bytes of ranks: of the run, and of its steps alone; ``traced_bytes`` of the traced buffers."""


BF16: Mapping[str, tuple] = {"dtype": ("bf16",), "mixed_precision": ("none",)}
PLAIN: Mapping[str, tuple] = BF16 | {
    "quantization": (None,), "offload": (None,), "use_liger_kernel": (False,), "padding": ("none", "right"),
    "attn_implementation": ("sdpa", "eager"), "per_device_eval_batch_size": (None,)}
"""What an engine is compared with first."""


@dataclass(frozen=True)
class Entry:
    """One engine.

    Attributes:
        implementation: its class, an :class:`Engine`, made of a ``MicroStep`` and a ``Setup``.
        chosen_by: what ``engine`` of a workload says, where that is not its name here: DeepSpeed's stages.
        compared: values of other keys that it was compared with on a GPU, real or emulated: others are refused.
        settings: the key of a workload that is its alone, with the defaults of what that holds.
        several: whether it is for more than one GPU.
        whole: whether every GPU holds what does not train whole; only such engines evaluate.
        notes: what is not modelled of it.
    """

    implementation: str
    chosen_by: str | None = None
    compared: Mapping[str, tuple] = field(default_factory=lambda: PLAIN)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    several: bool = True
    whole: bool = True
    notes: tuple[str, ...] = ()

    def load(self) -> Callable[[MicroStep, Setup], Engine]:
        """The class."""
        module, _, name = self.implementation.rpartition(".")
        return getattr(import_module(module), name)


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
    "torch": Entry("predictor.engine.torch_loop.TorchLoop", compared={}, several=False),
    "ddp": Entry("predictor.engine.ddp.Ddp", compared={}, settings={"ddp": DDP_DEFAULTS}, notes=(_STASHED,)),
    "fsdp2": Entry("predictor.engine.fsdp2.Fsdp2", settings={"fsdp": fsdp.DEFAULTS}, whole=False, notes=(_AUTOCAST,)),
    "zero0": Entry("predictor.engine.unpartitioned.Unpartitioned", "deepspeed", BF16),
    "zero1": Entry("predictor.engine.zero2.Zero2", "deepspeed", {}),
    "zero2": Entry("predictor.engine.zero2.Zero2", "deepspeed", {}),
    "zero3": Entry("predictor.engine.zero3.Zero3", "deepspeed", {}, whole=False),
}
"""Name, as :func:`name_of` gives it, -> engine."""


def name_of(engine: str, zero_stage: int | None) -> str:
    """Of a workload's ``engine`` and ``zero_stage``."""
    return f"zero{zero_stage}" if engine == "deepspeed" else engine


def choices() -> tuple[str, ...]:
    """What ``engine`` of a workload may say."""
    return tuple(dict.fromkeys(entry.chosen_by or name for name, entry in ENGINES.items()))
