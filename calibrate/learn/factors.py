"""What a recorded buffer is for: the one place with the rules, tried in order, the first that holds decides.

A recording tells of a buffer when it came and went, the operator and module that asked for it, the lines of Python
above, and (``calibrate.notes``) whether it is a parameter or was some parameter's gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from predictor.events import MOMENTS, Factor, Moment

NEVER = (1 << 7, Moment.OPTIMIZER_STEP)
"""When what lives on dies."""
FROM_HOST = frozenset(f"aten::{name}" for name in ("to", "_to_copy", "copy_", "empty_strided", "pin_memory"))
"""What brings a batch to the device, outside all modules."""
REDUCING = ("deepspeed/comm/", "torch/distributed/", "torch/nn/parallel/distributed.py", "allreduce", "all_reduce",
            "reduce_scatter", "_ipg_", "ipg_bucket")
"""In the Python stack where libraries make buckets and buffers of collectives (DeepSpeed 0.19, torch 2.11)."""
GATHERING = ("partition_parameters.py:all_gather", "partition_parameters.py:_all_gather", "partitioned_param_coordinator",
             "all_gather_into_tensor")
"""Where ZeRO-3 (and FSDP) bring parameters together."""
ENGINE = ("deepspeed/runtime/",)
MASTERS = ("stage_1_and_2.py:__init__", "stage3.py:_create_fp32_partitions", "bf16_optimizer.py",
           "stage3.py:_setup_for_real_optimizer")
"""Where DeepSpeed makes fp32 copies of what the optimizer updates."""


@dataclass(frozen=True)
class Life:
    """One recorded buffer.

    Attributes:
        born: step and moment.
        died: the same; :data:`NEVER` if it lives on.
        brief: freed before any other operator allocated.
        inside: made while a module's forward ran (in backward: recomputed).
        stack: lines of Python, ``file:function``, joined; without PyTorch's dispatcher.
        is_parameter, is_gradient: as noted.
    """

    operator: str
    module: str
    born: tuple[int, Moment]
    died: tuple[int, Moment]
    brief: bool
    inside: bool
    stack: str
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
        """Whether one of these is in the stack."""
        return any(place in self.stack for place in places)


Rule = tuple[Factor, Callable[[Life], bool]]

RULES: tuple[Rule, ...] = (
    (Factor.PARAMETERS, lambda b: b.is_parameter),
    (Factor.GRADIENTS, lambda b: b.is_gradient),
    # libraries that move data between ranks
    (Factor.PARAMETERS, lambda b: b.below(*GATHERING)),
    (Factor.COMMUNICATION, lambda b: b.below(*REDUCING) and not b.inside),
    # start-up
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.INIT and b.lives_on and b.below(*MASTERS)
     and b.operator in FROM_HOST),
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.INIT and b.lives_on and b.below("torch/optim/")),
    (Factor.GRADIENTS, lambda b: b.moment is Moment.INIT and b.below("initialize_optimizer_states")),
    (Factor.PARAMETERS, lambda b: b.moment is Moment.INIT and (b.lives_on or b.below(*ENGINE))),
    # a batch that comes from the host, before the model or after its step; weights that an engine replaces
    (Factor.INPUTS, lambda b: not b.inside and b.moment is not Moment.BACKWARD and b.operator in FROM_HOST
     and not b.below(*ENGINE, "torch/optim/") and not b.brief and b.born[0] <= b.died[0] and b.died[0] > 0),
    (Factor.PARAMETERS, lambda b: b.moment is Moment.INIT and not b.brief),
    # kept by libraries from their first call on: cuBLAS and others' workspaces
    (Factor.TEMPORARIES, lambda b: b.lives_on and b.moment in (Moment.FORWARD, Moment.BACKWARD) and b.inside),
    # forward, and what backward recomputes of it
    (Factor.TEMPORARIES, lambda b: b.brief),
    (Factor.ACTIVATIONS, lambda b: b.moment is Moment.FORWARD or b.inside),
    # backward and the optimizer's step
    (Factor.GRADIENTS, lambda b: b.moment is Moment.BACKWARD and b.leaves_backward),
    (Factor.OPTIMIZER_STATES, lambda b: b.moment is Moment.OPTIMIZER_STEP and (b.lives_on or b.died[0] > b.born[0])),
    (Factor.GRADIENTS, lambda b: b.below("stage_1_and_2.py:flatten", "stage_1_and_2.py:get_flat_partition",
                                         "flatten_dense_tensors")),
    (Factor.TEMPORARIES, lambda b: True),
)


def factor_of(life: Life) -> Factor:
    """The factor of the first rule that holds."""
    return next(factor for factor, holds in RULES if holds(life))
