"""Assigns a memory factor to each recorded buffer. The first rule that holds decides.

The rules use the time of allocation and free, the operator and module that requested the buffer, the Python stack, and
(``calibrate.job.side_notes``) whether the buffer is a parameter or was a parameter's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from predictor.events.events import MOMENTS, Factor, Moment

NEVER = (1 << 7, Moment.OPTIMIZER_STEP)
"""``died`` of a buffer that the job never frees."""
FROM_HOST = frozenset(f"aten::{name}" for name in ("to", "_to_copy", "copy_", "empty_strided", "pin_memory"))
"""Operators that copy a batch to the device, outside all modules."""
MATRIX_PRODUCTS = frozenset(f"aten::{name}" for name in (
    "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear", "matmul", "_addmm_activation", "_scaled_mm"))
"""Operators that use cuBLAS's workspace, whoever calls them (for example DeepSpeed's linear function of ZeRO-3)."""
REDUCING = ("deepspeed/comm/", "torch/distributed/", "torch/nn/parallel/distributed.py", "allreduce", "all_reduce",
            "reduce_scatter", "_ipg_", "ipg_bucket", "setup_buckets")
"""Parts of stack lines where libraries allocate buckets and buffers of collectives (DeepSpeed 0.19, torch 2.11)."""
DDP_BUCKETS = "torch/nn/parallel/distributed.py:_pre_forward"
"""DDP's function that replaces its first buckets in the second forward, without other callers."""
GATHERING = ("partition_parameters.py:all_gather", "partition_parameters.py:_all_gather",
             "partitioned_param_coordinator", "all_gather_into_tensor", "_fsdp_param.py:init_all_gather_outputs",
             "_fsdp_param.py:alloc_storage", "_fsdp_param.py:_init_sharded_param")
"""Parts of stack lines where ZeRO-3 and FSDP2 partition and all-gather parameters."""
FSDP2_COLLECTIVES, FSDP2_REDUCE = "_fsdp_collectives.py:", "_fsdp_collectives.py:foreach_reduce"
"""FSDP2's collectives, which hooks of the modules start. Buffers that outlive a reduction are the sharded gradients."""
DEEPSPEED = ("deepspeed/runtime/",)
ZERO_GRADIENTS = ("copy_grads_in_partition", "get_all_grad_tensors", "initialize_optimizer_states",
           "stage3.py:_create_param_groups_fp16_flat_gradients", "grad_partitions_flat_buffer")
"""Parts of stack lines where DeepSpeed keeps this rank's partition of the gradients for the update."""
ZERO_STEP = "stage_1_and_2.py:step"
"""DeepSpeed's step, which flattens that partition and casts it, without other callers."""
NEAR_LINES = 4
"""Number of innermost stack lines that show a buffer's purpose. Lines further out belong to the loop."""
ZERO_MASTERS = ("stage_1_and_2.py:__init__", "bf16_optimizer.py")
ZERO3_MASTERS = "stage3.py:_create_fp32_partitions"
"""Parts of stack lines where DeepSpeed makes fp32 copies of what the optimizer updates; this one is of ZeRO-3."""
ZERO3_GRADIENTS = "stage3.py:_setup_for_real_optimizer"
"""DeepSpeed's function that allocates ZeRO-3's buckets and the flat buffer of its gradients (``torch.zeros``), without
other callers."""
IGNORED_FRAMES = ("torch/_ops.py", "calibrate/", "torch/utils/_", "torch/_compile", "torch/_dynamo", "torch/_refs",
                  "torch/_prims_common")
"""Parts of file names of PyTorch's dispatcher and of this package."""


@dataclass(frozen=True)
class BufferLife:
    """One recorded buffer.

    Attributes:
        born: step and moment of its allocation.
        died: step and moment of its free; :data:`NEVER` if it is never freed.
        brief: whether it was freed before any other operator allocated.
        inside: whether it was allocated while a module's forward ran (in backward: was recomputed).
        stack: Python stack as ``file:function``, innermost first, without PyTorch's dispatcher.
        is_parameter, is_gradient: as :mod:`calibrate.job.side_notes` recorded it.
        is_optimizer_state: whether an optimizer holds it; only dry runs know.
    """

    operator: str
    module: str
    born: tuple[int, Moment]
    died: tuple[int, Moment]
    brief: bool
    inside: bool
    stack: tuple[str, ...]
    is_parameter: bool
    is_gradient: bool
    is_optimizer_state: bool = False

    @property
    def moment(self) -> Moment:
        return self.born[1]

    @property
    def lives_on(self) -> bool:
        return self.died == NEVER

    @property
    def outlives_its_moment(self) -> bool:
        """Whether the buffer outlives the moment in which it was allocated."""
        return (self.died[0], MOMENTS.index(self.died[1])) > (self.born[0], MOMENTS.index(self.born[1]))

    def called_from(self, *places: str) -> bool:
        """Whether one of these places is among the innermost stack lines."""
        return any(place in line for line in self.stack[:NEAR_LINES] for place in places)

    @property
    def is_of_zero3_gradients(self) -> bool:
        """Whether :data:`ZERO3_GRADIENTS` itself made the buffer."""
        return any(ZERO3_GRADIENTS in line for line in self.stack[:1])

    @property
    def is_zero_gradient_partition(self) -> bool:
        """Whether :data:`ZERO_STEP` made the buffer from the gradients."""
        lines = self.stack[:3]
        return any(ZERO_STEP in line for line in lines) and (
            ZERO_STEP in lines[0] or "flatten_dense" in "".join(lines[:2]))


Rule = tuple[Factor, Callable[[BufferLife], bool]]

COLLECTIVES: tuple[Rule, ...] = (
    (Factor.PARAMETERS, lambda b: b.called_from(*GATHERING)),
    (Factor.GRADIENTS, lambda b: b.called_from(*ZERO_GRADIENTS)
     or (b.called_from(FSDP2_REDUCE) and b.outlives_its_moment)),
    (Factor.COMMUNICATION, lambda b: b.called_from(FSDP2_COLLECTIVES)),
    (Factor.COMMUNICATION, lambda b: b.called_from(*REDUCING) and not b.inside),
    (Factor.COMMUNICATION, lambda b: any(DDP_BUCKETS in line for line in b.stack[:1])),
    (Factor.COMMUNICATION, lambda b: b.is_of_zero3_gradients and b.operator == "aten::empty"),
)
"""Libraries that move data between ranks; a gradient may be part of one of their buckets."""

START_UP: tuple[Rule, ...] = (
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.INIT and b.lives_on and b.called_from(*ZERO_MASTERS)
     and b.operator in FROM_HOST),
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.INIT and b.called_from(ZERO3_MASTERS)),
    (Factor.GRADIENTS, lambda b: b.moment is Moment.INIT and b.is_of_zero3_gradients and b.operator == "aten::zeros"),
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.INIT and b.lives_on and b.called_from("torch/optim/")),
)
"""What engines and optimizers make at start-up."""

ZERO_PARTITIONS: tuple[Rule, ...] = (
    (Factor.GRADIENTS, lambda b: b.moment is Moment.OPTIMIZER_STEP and b.is_zero_gradient_partition
     and b.operator in FROM_HOST | {"aten::cat"}),
)
"""This rank's partition of the gradients in DeepSpeed's step."""

RULES: tuple[Rule, ...] = (
    (Factor.PARAMETERS, lambda b: b.is_parameter),
    *COLLECTIVES,
    (Factor.GRADIENTS, lambda b: b.is_gradient),
    *START_UP,
    (Factor.PARAMETERS, lambda b: b.moment is Moment.INIT and (b.lives_on or b.called_from(*DEEPSPEED))),
    # a batch that is copied from the CPU, before the model or after its step; weights that an engine replaces
    (Factor.INPUTS, lambda b: not b.inside and b.moment is not Moment.BACKWARD and b.operator in FROM_HOST
     and not b.called_from(*DEEPSPEED, "torch/optim/") and not b.brief and b.born[0] <= b.died[0] and b.died[0] > 0),
    (Factor.PARAMETERS, lambda b: b.moment is Moment.INIT and not b.brief),
    *ZERO_PARTITIONS,
    # workspaces that libraries keep from their first call on, such as cuBLAS's
    (Factor.TEMPORARIES, lambda b: b.lives_on and b.moment in (Moment.FORWARD, Moment.BACKWARD)
     and b.operator in MATRIX_PRODUCTS),
    (Factor.TEMPORARIES, lambda b: b.lives_on and b.moment in (Moment.FORWARD, Moment.BACKWARD)
     and not b.called_from(*DEEPSPEED)),
    # forward, and its recomputation in backward
    (Factor.TEMPORARIES, lambda b: b.brief),
    (Factor.ACTIVATIONS, lambda b: b.moment is Moment.FORWARD or b.inside),
    # backward and the optimizer's step
    (Factor.GRADIENTS, lambda b: b.moment is Moment.BACKWARD and b.outlives_its_moment),
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.OPTIMIZER_STEP and (b.lives_on or b.died[0] > b.born[0])),
    (Factor.TEMPORARIES, lambda b: True),
)


def factor_of(life: BufferLife) -> Factor:
    """The factor of the first rule that holds."""
    return next(factor for factor, holds in RULES if holds(life))


def stack_lines(frames: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """``file:function`` of each frame, given its file name and function, without PyTorch's dispatcher."""
    names = ((file.replace("\\", "/").rpartition("site-packages/")[2], function) for file, function in frames)
    return tuple(f"{name}:{function}" for name, function in names if not any(part in name for part in IGNORED_FRAMES))
