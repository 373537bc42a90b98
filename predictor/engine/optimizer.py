"""How each class of optimizer allocates: to add one, write its file and its line in :data:`UPDATES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from predictor.common.gpus import Gpu
from predictor.engine.adafactor import Adafactor
from predictor.engine.blockwise import Blockwise
from predictor.engine.elementwise import Adagrad, AdamW, RMSprop, Sgd
from predictor.events.model_facts import Parameter
from predictor.workload.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from predictor.engine.compose import Tape


class Update(Protocol):
    """One optimizer of one run, as it allocates."""

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """What its constructor allocates for all tensors, in the order of its groups; most allocate nothing."""

    def step(self, tape: Tape, tensors: Sequence[Parameter], weight_decay: float) -> None:
        """``step()`` over one group: states in the first (``tape.first_step_only``), temporaries in each."""


def _adamw(arguments: Mapping[str, Any], gpu: Gpu, *, fused: bool = False, foreach: bool = True) -> Update:
    return AdamW(arguments, gpu, kind="fused" if fused else "foreach" if foreach else "loop")


def _blockwise(states: int) -> Callable[..., Update]:
    def made(arguments: Mapping[str, Any], gpu: Gpu, *, optim_bits: int, is_paged: bool = False) -> Update:
        return Blockwise(arguments, gpu, states=states, bits=optim_bits, paged=is_paged)

    return made


def _adafactor(arguments: Mapping[str, Any], gpu: Gpu, **_without_effect: bool) -> Update:
    return Adafactor(arguments, gpu)


UPDATES: Mapping[str, Callable[..., Update]] = {
    "torch.optim.AdamW": _adamw, "torch.optim.SGD": Sgd, "torch.optim.RMSprop": RMSprop,
    "torch.optim.Adagrad": Adagrad, "transformers.optimization.Adafactor": _adafactor,
    "bitsandbytes.optim.AdamW": _blockwise(states=2), "bitsandbytes.optim.Lion": _blockwise(states=1),
    "bitsandbytes.optim.RMSprop": _blockwise(states=1),
}
"""Class -> what makes its :class:`Update` from ``optim_args``, the GPU, and the arguments of the optimizer's line."""


@dataclass
class Steps:
    """The optimizer of one run: :meth:`construct` where it is built, then :meth:`step` group by group."""

    update: Update
    weight_decay: float

    @staticmethod
    def of(optim: str, arguments: Mapping[str, Any], weight_decay: float, gpu: Gpu) -> Steps:
        """As a workload says."""
        line = OPTIMIZERS[optim]
        return Steps(UPDATES[line.implementation](arguments, gpu, **line.arguments), weight_decay)

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """Build it over all groups' tensors."""
        self.update.construct(tape, tensors)

    def step(self, tape: Tape, tensors: Sequence[Parameter], *, decay: bool) -> None:
        """Update one group; ``decay`` says whether weight decay applies to it."""
        self.update.step(tape, tensors, self.weight_decay if decay else 0.0)


def partition(elements: int, itemsize: int) -> Parameter:
    """A flat stretch of parameters, as ZeRO hands one to the optimizer for each group."""
    return Parameter("", (elements,), itemsize, True, embedding=False)
