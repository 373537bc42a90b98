"""Optimizers of PyTorch's, whose states and temporaries are as large as their tensors.

torch 2.11, torch/optim/: adam.py (which ``AdamW`` calls), sgd.py, rmsprop.py, adagrad.py; ``_init_group``, and
``_multi_tensor_…``, which CUDA tensors take by default. ``differentiable`` and ``capturable`` are off, so step
counters lie on the CPU, except those of fused ones. With foreach, temporaries of all tensors of a group live
together, those of one dtype after the other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from predictor.common.gpus import Gpu
from predictor.engine.foreach import by_dtype
from predictor.events.events import Factor
from predictor.events.model_facts import Parameter

if TYPE_CHECKING:
    from predictor.engine.compose import Tape

COUNTER_BYTES = 4


class _ElementWise:
    """What they share: states of the whole group first, then batch by batch."""

    name: str
    states: tuple[str, ...] = ()
    counts_on_gpu = False
    foreach = True

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """Nothing: states are made in the first step."""

    def step(self, tape: Tape, tensors: Sequence[Parameter], weight_decay: float) -> None:
        with tape.first_step_only():
            self.make(tape, tensors)
        kept: list[list[int]] = []
        for batch in self._batches(tensors):
            live = self.temporaries(tape, batch, weight_decay)
            for buffers in kept:  # the variables are set anew
                free(tape, buffers)
            kept = live
        for buffers in kept:
            free(tape, buffers)

    def make(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """States, tensor by tensor."""
        for tensor in tensors:
            if self.counts_on_gpu:
                tape.allocate(COUNTER_BYTES, Factor.OPTIMIZER_STATES, f"{self.name}::step", module=tensor.module)
            for state in self.states:
                tape.allocate(tensor.bytes, Factor.OPTIMIZER_STATES, f"{self.name}::{state}", module=tensor.module)

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        """What one batch needs, in order; returns the lists that live until the next batch's are there."""
        raise NotImplementedError

    def like(self, tape: Tape, batch: Sequence[Parameter]) -> list[int]:
        """A temporary for each tensor."""
        return [tape.allocate(tensor.bytes, Factor.TEMPORARIES, f"{self.name}::update", module=tensor.module)
                for tensor in batch]

    def decayed(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[int]:
        """Gradients with weight decay added (coupled), new tensors."""
        return self.like(tape, batch) if weight_decay else []

    def _batches(self, tensors: Sequence[Parameter]) -> list[list[Parameter]]:
        if not self.foreach:
            return [[tensor] for tensor in tensors]
        return by_dtype(tensors)


def free(tape: Tape, buffers: Sequence[int]) -> None:
    """A list dies, last item first (CPython's ``list_dealloc``)."""
    for buffer in reversed(buffers):
        tape.free(buffer)


class AdamW(_ElementWise):
    """Decay is decoupled and in place."""

    name, states = "adamw", ("exp_avg", "exp_avg_sq")

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu, *, kind: str) -> None:
        self.kind = kind
        self.counts_on_gpu = kind == "fused"
        self.foreach = kind != "loop"

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        if self.kind == "fused":
            return []
        root = self.like(tape, batch)  # exp_avg_sq_sqrt, then in place
        if self.kind == "foreach":
            return [root]
        quotient = self.like(tape, batch)  # (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)
        free(tape, root)
        return [quotient]


class Sgd(_ElementWise):
    """The first step's momentum is a copy of the gradient, made after the decay."""

    name = "sgd"

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu) -> None:
        self.momentum = arguments.get("momentum", 0.0)  # Nesterov's is added in place

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        gradients = self.decayed(tape, batch, weight_decay)
        if self.momentum:
            with tape.first_step_only():
                for tensor in batch:
                    tape.allocate(tensor.bytes, Factor.OPTIMIZER_STATES, "sgd::momentum_buffer", module=tensor.module)
        return [gradients]


class RMSprop(_ElementWise):
    """Square averages; the root lives until the step's end, and so do gradients with decay."""

    name = "rmsprop"

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu) -> None:
        self.states = ("square_avg", *(["momentum_buffer"] if arguments.get("momentum") else []),
                       *(["grad_avg"] if arguments.get("centered") else []))

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        return [self.decayed(tape, batch, weight_decay), self.like(tape, batch)]


class Adagrad(_ElementWise):
    """The only one whose states are there from its construction on."""

    name, states = "adagrad", ("sum",)

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu) -> None:
        pass

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        super().make(tape, tensors)

    def make(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """They are there."""

    def temporaries(self, tape: Tape, batch: Sequence[Parameter], weight_decay: float) -> list[list[int]]:
        gradients = self.decayed(tape, batch, weight_decay)
        root = self.like(tape, batch)
        return [root, gradients or self.like(tape, batch)]  # times the learning rate
