"""What a recorded buffer is for: the one place with the rules, tried in order, the first that holds decides.

A recording tells of a buffer when it came and went, the operator and module that asked for it, the lines of Python
above, and (``calibrate.job.side_notes``) whether it is a parameter or was some parameter's gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from predictor.events.events import MOMENTS, Factor, Moment

NEVER = (1 << 7, Moment.OPTIMIZER_STEP)
"""When what lives on dies."""
FROM_HOST = frozenset(f"aten::{name}" for name in ("to", "_to_copy", "copy_", "empty_strided", "pin_memory"))
"""What brings a batch to the device, outside all modules."""
PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear",
                                                  "matmul", "_addmm_activation", "_scaled_mm"))
"""What cuBLAS has its workspace for, whoever calls it (DeepSpeed's linear function of ZeRO-3)."""
REDUCING = ("deepspeed/comm/", "torch/distributed/", "torch/nn/parallel/distributed.py", "allreduce", "all_reduce",
            "reduce_scatter", "_ipg_", "ipg_bucket", "setup_buckets")
"""In the Python stack where libraries make buckets and buffers of collectives (DeepSpeed 0.19, torch 2.11)."""
GATHERING = ("partition_parameters.py:all_gather", "partition_parameters.py:_all_gather",
             "partitioned_param_coordinator", "all_gather_into_tensor", "_fsdp_param.py:init_all_gather_outputs",
             "_fsdp_param.py:alloc_storage", "_fsdp_param.py:_init_sharded_param")
"""Where ZeRO-3 and FSDP2 part parameters and bring them together."""
COLLECTIVES_2, REDUCE_2 = "_fsdp_collectives.py:", "_fsdp_collectives.py:foreach_reduce"
"""FSDP2's collectives, which hooks of the modules start; what they leave of a reduction is the sharded gradients."""
ENGINE = ("deepspeed/runtime/",)
REDUCED = ("copy_grads_in_partition", "get_all_grad_tensors", "initialize_optimizer_states",
           "stage3.py:_create_param_groups_fp16_flat_gradients", "grad_partitions_flat_buffer")
"""Where DeepSpeed keeps what of the gradients this rank updates with."""
STEP = "stage_1_and_2.py:step"
"""It gathers that part into one piece and casts it, both by itself."""
NEAR = 4
"""Lines of the stack that say what a buffer is for; further out is the loop."""
MASTERS = ("stage_1_and_2.py:__init__", "bf16_optimizer.py")
MASTERS_3 = "stage3.py:_create_fp32_partitions"
"""Where DeepSpeed makes fp32 copies of what the optimizer updates."""
GRADIENTS_3 = "stage3.py:_setup_for_real_optimizer"
"""It makes the flat buffer of ZeRO-3's gradients, by itself."""


@dataclass(frozen=True)
class Life:
    """One recorded buffer.

    Attributes:
        born: step and moment.
        died: the same; :data:`NEVER` if it lives on.
        brief: freed before any other operator allocated.
        inside: made while a module's forward ran (in backward: recomputed).
        stack: lines of Python, ``file:function``, innermost first, without PyTorch's dispatcher.
        is_parameter, is_gradient: as noted.
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

    @property
    def moment(self) -> Moment:
        return self.born[1]

    @property
    def lives_on(self) -> bool:
        return self.died == NEVER

    @property
    def leaves_backward(self) -> bool:
        """Whether it outlives the moment that it was made in."""
        return (self.died[0], MOMENTS.index(self.died[1])) > (self.born[0], MOMENTS.index(self.born[1]))

    def below(self, *places: str) -> bool:
        """Whether one of these is near in the stack."""
        return any(place in line for line in self.stack[:NEAR] for place in places)

    @property
    def is_zeros_partition(self) -> bool:
        """Whether it is what :data:`STEP` makes of the gradients."""
        lines = self.stack[:3]
        return any(STEP in line for line in lines) and (STEP in lines[0] or "flatten_dense" in "".join(lines[:2]))


Rule = tuple[Factor, Callable[[Life], bool]]

RULES: tuple[Rule, ...] = (
    (Factor.PARAMETERS, lambda b: b.is_parameter),
    # libraries that move data between ranks; a gradient may lie in one of their buckets
    (Factor.PARAMETERS, lambda b: b.below(*GATHERING)),
    (Factor.GRADIENTS, lambda b: b.below(*REDUCED) or (b.below(REDUCE_2) and b.leaves_backward)),
    (Factor.COMMUNICATION, lambda b: b.below(COLLECTIVES_2)),
    (Factor.COMMUNICATION, lambda b: b.below(*REDUCING) and not b.inside),
    (Factor.GRADIENTS, lambda b: b.is_gradient),
    # start-up
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.INIT and b.lives_on and b.below(*MASTERS)
     and b.operator in FROM_HOST),
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.INIT and b.below(MASTERS_3)),
    (Factor.GRADIENTS, lambda b: b.moment is Moment.INIT and any(GRADIENTS_3 in line for line in b.stack[:1])),
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.INIT and b.lives_on and b.below("torch/optim/")),
    (Factor.PARAMETERS, lambda b: b.moment is Moment.INIT and (b.lives_on or b.below(*ENGINE))),
    # a batch that comes from the host, before the model or after its step; weights that an engine replaces
    (Factor.INPUTS, lambda b: not b.inside and b.moment is not Moment.BACKWARD and b.operator in FROM_HOST
     and not b.below(*ENGINE, "torch/optim/") and not b.brief and b.born[0] <= b.died[0] and b.died[0] > 0),
    (Factor.PARAMETERS, lambda b: b.moment is Moment.INIT and not b.brief),
    (Factor.GRADIENTS, lambda b: b.moment is Moment.OPTIMIZER_STEP and b.is_zeros_partition
     and b.operator in FROM_HOST | {"aten::cat"}),
    # kept by libraries from their first call on: cuBLAS and others' workspaces
    (Factor.TEMPORARIES, lambda b: b.lives_on and b.moment in (Moment.FORWARD, Moment.BACKWARD)
     and b.operator in PRODUCTS),
    (Factor.TEMPORARIES, lambda b: b.lives_on and b.moment in (Moment.FORWARD, Moment.BACKWARD)
     and not b.below(*ENGINE)),
    # forward, and what backward recomputes of it
    (Factor.TEMPORARIES, lambda b: b.brief),
    (Factor.ACTIVATIONS, lambda b: b.moment is Moment.FORWARD or b.inside),
    # backward and the optimizer's step
    (Factor.GRADIENTS, lambda b: b.moment is Moment.BACKWARD and b.leaves_backward),
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.OPTIMIZER_STEP and (b.lives_on or b.died[0] > b.born[0])),
    (Factor.TEMPORARIES, lambda b: True),
)


def factor_of(life: Life) -> Factor:
    """The factor of the first rule that holds."""
    return next(factor for factor, holds in RULES if holds(life))
