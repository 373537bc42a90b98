"""Assigns a memory factor to each block of a dry run. The first rule that holds decides.

The rules are those of recorded jobs (:mod:`calibrate.job.factors`) where they name a library's own function. But a
user's script may allocate anything, so nothing is assumed of a block that no rule names: it has no factor.
"""

from __future__ import annotations

from calibrate.job import factors
from calibrate.job.factors import BufferLife, Rule
from predictor.events.events import Factor, Moment

UNATTRIBUTED = "unattributed"
"""In place of a factor's name, for bytes whose purpose is unknown."""

RULES: tuple[Rule, ...] = (
    (Factor.PARAMETERS, lambda b: b.is_parameter),
    (Factor.OPTIMIZER_STATES, lambda b: b.is_optimizer_state),
    *factors.COLLECTIVES,
    (Factor.GRADIENTS, lambda b: b.is_gradient),
    *factors.START_UP,
    # a model that moves to the GPU and has not run yet
    (Factor.PARAMETERS, lambda b: b.moment is Moment.INIT and b.called_from("torch/nn/modules/module.py:_apply")),
    # a batch that is copied from the CPU outside the model
    (Factor.INPUTS, lambda b: not b.inside and b.moment in (Moment.INIT, Moment.FORWARD) and not b.brief
     and b.operator in factors.FROM_HOST and not b.called_from(*factors.DEEPSPEED, "torch/optim/")
     and b.born[0] <= b.died[0]),
    *factors.ZERO_PARTITIONS,
    # cuBLAS keeps its workspace from its first call on
    (Factor.TEMPORARIES, lambda b: b.lives_on and b.operator in factors.MATRIX_PRODUCTS),
    (Factor.TEMPORARIES, lambda b: b.brief),
    # forward, the loss after it, and its recomputation in backward
    (Factor.ACTIVATIONS, lambda b: b.moment is Moment.FORWARD or b.inside),
    (Factor.TEMPORARIES, lambda b: b.moment in (Moment.BACKWARD, Moment.OPTIMIZER_STEP) and not b.outlives_its_moment),
)


def factor_of(life: BufferLife) -> Factor | None:
    """The factor of the first rule that holds, or None."""
    return next((factor for factor, holds in RULES if holds(life)), None)
