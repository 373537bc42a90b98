"""The two tables of optimizers agree: workload keys and modelled classes."""

from __future__ import annotations

import pytest

from predictor.common import gpus
from predictor.engine.optimizer import Steps
from predictor.engine.tape import Tape
from predictor.events.model_facts import Parameter
from predictor.workload.optimizers import DECAY_ALLOCATES, OPTIMIZERS, WITH_ARGUMENTS

WEIGHT = Parameter("layer.weight", (512, 512), 2, True)


def allocated(optim: str, weight_decay: float) -> int:
    """Bytes that one step allocates in total, states included."""
    tape = Tape()
    Steps.of(optim, {}, weight_decay, gpus.find("h100-80gb")).update.step(tape, [WEIGHT], weight_decay)
    return sum(tape.buffers.sizes)


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_the_table_says_with_which_optimizers_weight_decay_takes_memory(optim):
    assert (allocated(optim, 0.1) > allocated(optim, 0.0)) == (optim in DECAY_ALLOCATES)


def test_what_is_named_in_place_of_another_optimizer_runs_with_fsdp2():
    reason = OPTIMIZERS["adamw_8bit"].refused_by["fsdp2"]
    named = reason.partition(": use ")[2].replace(" or ", ", ").split(", ")
    assert named == [name for name, line in OPTIMIZERS.items() if "fsdp2" not in line.refused_by
                     and "fsdp2 bf16" not in line.refused_by]


def test_the_help_names_the_optimizers_that_read_arguments():
    assert WITH_ARGUMENTS == ["sgd", "rmsprop", "adagrad"]
