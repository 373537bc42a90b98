"""Table of the optimizer classes whose allocations are known.

To add one, write its class, its line in :data:`UPDATES`, and its line in ``predictor.workload.optimizers.OPTIMIZERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from predictor.common.gpus import Gpu
from predictor.engine.adafactor import Adafactor
from predictor.engine.blockwise import Blockwise
from predictor.engine.elementwise import Adagrad, AdamW, RMSprop, Sgd
from predictor.engine.tape import Tape
from predictor.events.model_facts import Parameter
from predictor.workload.optimizers import OPTIMIZERS


class Update(Protocol):
    """The allocations of one optimizer in one run."""

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """Allocations of the constructor, for the tensors of all groups in order. Most optimizers have none."""

    def step(self, tape: Tape, tensors: Sequence[Parameter], weight_decay: float) -> None:
        """``step()`` over one group: states in the first step (``tape.first_step_only``), temporaries in each step."""


def _adamw(arguments: Mapping[str, Any], gpu: Gpu, *, fused: bool = False, foreach: bool = True) -> Update:
    return AdamW(arguments, gpu, implementation="fused" if fused else "foreach" if foreach else "loop")


def _blockwise(states: int) -> Callable[..., Update]:
    def construct(arguments: Mapping[str, Any], gpu: Gpu, *, optim_bits: int, is_paged: bool = False) -> Update:
        return Blockwise(arguments, gpu, states=states, bits=optim_bits, paged=is_paged)

    return construct


def _adafactor(arguments: Mapping[str, Any], gpu: Gpu, **_without_effect: bool) -> Update:
    return Adafactor(arguments, gpu)


UPDATES: Mapping[str, Callable[..., Update]] = {
    "torch.optim.AdamW": _adamw, "torch.optim.SGD": Sgd, "torch.optim.RMSprop": RMSprop,
    "torch.optim.Adagrad": Adagrad, "transformers.optimization.Adafactor": _adafactor,
    "bitsandbytes.optim.AdamW": _blockwise(states=2), "bitsandbytes.optim.Lion": _blockwise(states=1),
    "bitsandbytes.optim.RMSprop": _blockwise(states=1),
}
"""Class -> a function that makes its :class:`Update` from ``optim_args``, the GPU, and the keyword arguments of the
optimizer's line in ``predictor.workload.optimizers``."""


@dataclass
class Steps:
    """The optimizer of one run: call :meth:`construct` where it is constructed, then :meth:`step` for each group."""

    update: Update
    weight_decay: float

    @staticmethod
    def of(optim: str, arguments: Mapping[str, Any], weight_decay: float, gpu: Gpu) -> Steps:
        """The optimizer that a workload names.

        Args:
            optim: a key of ``predictor.workload.optimizers.OPTIMIZERS``.
            arguments: the workload's ``optim_args``.
        """
        line = OPTIMIZERS[optim]
        return Steps(UPDATES[line.implementation](arguments, gpu, **line.arguments), weight_decay)

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """Constructs the optimizer over the tensors of all groups."""
        self.update.construct(tape, tensors)

    def step(self, tape: Tape, tensors: Sequence[Parameter], *, decay: bool) -> None:
        """Updates one group; ``decay`` says whether weight decay applies to it."""
        self.update.step(tape, tensors, self.weight_decay if decay else 0.0)


def partition(elements: int, itemsize: int) -> Parameter:
    """A flat tensor of several parameters' elements, as ZeRO passes one to the optimizer for each group."""
    return Parameter("", (elements,), itemsize, True, embedding=False)
