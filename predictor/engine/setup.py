"""The settings of a run that engines use, taken from a workload and the model's facts."""

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
from predictor.workload.optimizers import DTENSOR_FALLBACK

FP64, FP32, BF16 = 8, 4, 2
"""Bytes of an element."""
MICRO_STEPS = 3
"""Most micro-steps of a step that are composed. From the second on they allocate alike; from the third on, the
allocator's cache is in the same state before each."""
STEPS = 3
"""Optimizer steps that are composed. The first creates the optimizer's states; the later ones are alike."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The settings of one run.

    Attributes:
        engine: a key of ``engines.IMPLEMENTATIONS``, or ``learned``.
        zero: None without DeepSpeed.
        capacity_bytes: bytes that PyTorch can reserve; None for no limit.
        versions: package -> its release; empty where no release of another package than DeepSpeed counts.
        reentrant_checkpoints: whether checkpoints run their part without a graph and recompute it as a whole.
        loss_scaling: whether a ``torch.amp.GradScaler`` scales the loss.
        device_map: whether the model is loaded straight to the GPU.
        keep_outputs, zero_grad: when the loop frees the model's output and the gradients, as the workload's keys say.
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
    fsdp1: FrozenMap | None = None
    mixed_precision: str = "none"
    quantization: FrozenMap | None = None
    versions: FrozenMap = FrozenMap({})
    autocast_adapter_dtype: bool = False
    optim_args: FrozenMap = FrozenMap({})
    weight_decay: float = 0.0
    reentrant_checkpoints: bool = False
    loss_scaling: bool = False
    tensor_parallel_size: int = 1
    keep_outputs: str = "none"
    zero_grad: str = "after_step"
    device_map: bool = False
    gpu: Gpu = gpus.find(gpus.DEFAULT)

    def optimizer(self) -> optimizer.Steps:
        """A new optimizer, for one run."""
        optim = DTENSOR_FALLBACK if self.mixed else self.optim
        return optimizer.Steps.of(optim, self.optim_args, self.weight_decay, self.gpu)

    @property
    def mixed(self) -> bool:
        """Whether both DTensors and plain tensors train; fused and foreach functions do not accept such a mixture."""
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
        """A rank's index among data-parallel ranks, and its index among the tensor-parallel ranks of its layers."""
        return divmod(rank, self.tensor_parallel_size)

    @property
    def world_size(self) -> int:
        """Number of all ranks: data-parallel times tensor-parallel degree."""
        return self.data_parallel_size * self.tensor_parallel_size

    @property
    def deepspeed(self) -> ZeroConfig:
        """The settings of ZeRO; only for DeepSpeed's engines."""
        assert self.zero is not None  # set for these engines
        return self.zero

    @property
    def micro_steps(self) -> int:
        """Number of micro-steps to compose. From the second on, gradients are added to those of the first."""
        return min(self.gradient_accumulation_steps, MICRO_STEPS)
