"""PyTorch's element-wise optimizers: each state and temporary is as large as its parameter.

torch 2.11, torch/optim/: adam.py (which ``AdamW`` calls), sgd.py, rmsprop.py, adagrad.py; ``_init_group``, and
``_multi_tensor_…``, which is the default for CUDA tensors. ``differentiable`` and ``capturable`` are off, so step
counters are on the CPU, except those of fused optimizers. With foreach, the temporaries of all tensors of a group and
dtype live at the same time; dtypes follow one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.common.gpus import Gpu
from predictor.engine.foreach import by_dtype
from predictor.engine.tape import Tape
from predictor.events.events import Factor
from predictor.events.model_facts import Parameter

COUNTER_BYTES = 4


class _ElementWise:
    """Base class: creates the states of a whole group first, then updates batch by batch (one dtype, or one tensor)."""

    name: str
    states: tuple[str, ...] = ()
    counts_on_gpu = False
    foreach = True

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """Allocates nothing: the first step creates the states."""

    def step(self, tape: Tape, tensors: Sequence[Parameter], weight_decay: float) -> None:
        with tape.first_step_only():
            self.make(tape, tensors)
        kept: list[list[int]] = []
        for batch in self._batches(tensors):
            live = self.temporaries(tape, batch, weight_decay)
            for buffers in kept:  # variables of the previous batch are assigned again
                free(tape, buffers)
            kept = live
        for buffers in kept:
            free(tape, buffers)

    def make(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """Allocates the states, tensor by tensor."""
        for tensor in tensors:
            if self.counts_on_gpu:
                tape.allocate(COUNTER_BYTES, Factor.OPTIMIZER_STATES, f"{self.name}::step", module=tensor.module)
            for state in self.states:
                tape.allocate(tensor.bytes, Factor.OPTIMIZER_STATES, f"{self.name}::{state}", module=tensor.module)

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        """Allocates the temporaries of one batch; returns the lists that live until the next batch has its own."""
        raise NotImplementedError

    def like(self, tape: Tape, batch: Sequence[Parameter]) -> list[int]:
        """Allocates a temporary as large as each tensor."""
        return [tape.allocate(tensor.bytes, Factor.TEMPORARIES, f"{self.name}::update", module=tensor.module)
                for tensor in batch]

    def decayed(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[int]:
        """Allocates the gradients plus coupled weight decay; no tensors without decay."""
        return self.like(tape, batch) if weight_decay else []

    def _batches(self, tensors: Sequence[Parameter]) -> list[list[Parameter]]:
        if not self.foreach:
            return [[tensor] for tensor in tensors]
        return by_dtype(tensors)


def free(tape: Tape, buffers: Sequence[int]) -> None:
    """Frees the tensors of a list, last item first, as CPython's ``list_dealloc`` does."""
    for buffer in reversed(buffers):
        tape.free(buffer)


class AdamW(_ElementWise):
    """AdamW. Its weight decay is decoupled and in place.

    Args:
        implementation: ``fused``, ``foreach`` or ``loop``.
    """

    name, states = "adamw", ("exp_avg", "exp_avg_sq")

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu, *, implementation: str) -> None:
        self.implementation = implementation
        self.counts_on_gpu = implementation == "fused"
        self.foreach = implementation != "loop"

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        if self.implementation == "fused":
            return []
        root = self.like(tape, batch)  # exp_avg_sq_sqrt; later operations are in place
        if self.implementation == "foreach":
            return [root]
        quotient = self.like(tape, batch)  # (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)
        free(tape, root)
        return [quotient]


class Sgd(_ElementWise):
    """SGD. The momentum of the first step is a copy of the gradient after weight decay."""

    name = "sgd"

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu) -> None:
        self.momentum = arguments.get("momentum", 0.0)  # Nesterov momentum is added in place

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        gradients = self.decayed(tape, batch, weight_decay)
        if self.momentum:
            with tape.first_step_only():
                for tensor in batch:
                    tape.allocate(tensor.bytes, Factor.OPTIMIZER_STATES, "sgd::momentum_buffer", module=tensor.module)
        return [gradients]


class RMSprop(_ElementWise):
    """RMSprop. The root of the square average and gradients with decay live until the end of the step."""

    name = "rmsprop"

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu) -> None:
        self.states = ("square_avg", *(["momentum_buffer"] if arguments.get("momentum") else []),
                       *(["grad_avg"] if arguments.get("centered") else []))

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        return [self.decayed(tape, batch, weight_decay), self.like(tape, batch)]


class Adagrad(_ElementWise):
    """Adagrad, the only optimizer here whose constructor creates the states."""

    name, states = "adagrad", ("sum",)

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu) -> None:
        pass

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        super().make(tape, tensors)

    def make(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """Allocates nothing: the constructor has created the states."""

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        gradients = self.decayed(tape, batch, weight_decay)
        root = self.like(tape, batch)
        return [root, gradients or self.like(tape, batch)]  # times the learning rate
