"""What an engine needs to know of a run, from a workload and a model's facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from predictor.allocator import AllocatorSettings
from predictor.common import gpus
from predictor.common.gpus import Gpu
from predictor.common.value_types import FrozenMap
from predictor.engine import optimizer
from predictor.events.model_facts import ModelFacts
from predictor.workload.deepspeed_config import ZeroConfig
from predictor.workload.optimizers import LOOP

FP64, FP32, BF16 = 8, 4, 2
"""Bytes of an element."""
MICRO_STEPS = 3
"""Micro-steps of a step that are laid out: from the second on they allocate alike, from the third on the
allocator's cache is the same before each."""
STEPS = 3
"""Optimizer steps that a run has: the first makes the optimizer's states, the later ones are alike."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One run.

    ``engine`` is a key of ``engines.ENGINES``; ``zero`` is None without DeepSpeed; ``capacity_bytes``, what PyTorch can
    have, None for no limit; ``loss_scaling``, whether a ``torch.amp.GradScaler`` scales the loss.
    """

    facts: ModelFacts = field(hash=False)  # long, and equal formulas share it
    engine: str
    optim: str
    param_groups: str
    max_grad_norm: float
    gradient_accumulation_steps: int
    data_parallel_size: int
    zero: ZeroConfig | None
    capacity_bytes: int | None
    allocator: AllocatorSettings = AllocatorSettings()
    ddp: FrozenMap | None = None
    fsdp: FrozenMap | None = None
    quantization: FrozenMap | None = None
    autocast_adapter_dtype: bool = False
    optim_args: FrozenMap = FrozenMap({})
    weight_decay: float = 0.0
    loss_scaling: bool = False
    tensor_parallel_size: int = 1
    gpu: Gpu = gpus.find(gpus.DEFAULT)

    def optimizer(self) -> optimizer.Steps:
        """A new one, for one run."""
        optim = LOOP if self.mixed else self.optim
        return optimizer.Steps.of(optim, self.optim_args, self.weight_decay, self.gpu)

    @property
    def mixed(self) -> bool:
        """Whether DTensors and plain tensors train side by side, which fused and foreach functions do not take."""
        return self.engine == "torch" and len({p.sharded for p in self.facts.parameters if p.trainable}) > 1

    def decays(self, group: Sequence[int]) -> bool:
        """Whether weight decay applies to a group of :meth:`groups`."""
        return self.param_groups == "single" or self.facts.parameters[group[0]].decay

    def groups(self) -> list[list[int]]:
        """Indices of the trainable parameters by optimizer group; empty groups are dropped."""
        trainable = [index for index, p in enumerate(self.facts.parameters) if p.trainable]
        if self.param_groups == "single":
            return [trainable]
        split = [[i for i in trainable if self.facts.parameters[i].decay is decay] for decay in (True, False)]
        return [group for group in split if group]

    def place(self, rank: int) -> tuple[int, int]:
        """A rank's among those of data parallelism, and among those that share its layers with it."""
        return divmod(rank, self.tensor_parallel_size)

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.data_parallel_size * self.tensor_parallel_size

    @property
    def micro_steps(self) -> int:
        """Micro-steps to lay out: from the second on, each adds into the first one's gradients."""
        return min(self.gradient_accumulation_steps, MICRO_STEPS)
