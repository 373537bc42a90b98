"""Recognises parameters, gradients and optimizer states of a dry run by their addresses. Holds no tensor alive."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from calibrate.job.side_notes import own_name
from predictor.events.events import Factor


class Owned(NamedTuple):
    """A tensor at an address: its size, its factor, and the path of its module (empty if unknown)."""

    address: int
    bytes: int
    factor: Factor
    module: str


class Completed(NamedTuple):
    """A tensor became a parameter's gradient at this time, on the clock of the allocator's history."""

    time_us: int
    address: int


class Owners:
    """Knows the models that ran and the optimizers that stepped, as long as the script keeps them.

    Attributes:
        completed: gradients since :meth:`forget`. Engines may take one away before the optimizer's step.
    """

    def __init__(self) -> None:
        self._models: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.completed: list[Completed] = []

    def model_runs(self, model: torch.nn.Module, prefix: str) -> None:
        """A model runs for the first time; ``prefix`` begins its paths."""
        self._models[model] = prefix

    def completes(self, gradient: torch.Tensor) -> None:
        """A gradient becomes a parameter's."""
        for owned in _owned(gradient, Factor.GRADIENTS, ""):
            self.completed.append(Completed(time.time_ns() // 1000, owned.address))

    def optimizer_steps(self, optimizer: Any) -> None:
        """An optimizer steps."""
        if isinstance(optimizer, torch.optim.Optimizer):
            self._optimizers.add(optimizer)

    def forget(self) -> None:
        """Drops the gradients so far."""
        self.completed.clear()

    def now(self) -> Iterator[Owned]:
        """The tensors on the GPU that exist now."""
        modules: dict[int, str] = {}  # of the parameters, by id
        for model, prefix in list(self._models.items()):
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                path = _module(prefix + own_name(name))
                modules.setdefault(id(tensor), path)
                yield from _owned(tensor, Factor.PARAMETERS, path)
                yield from _owned(tensor.grad if tensor.is_leaf else None, Factor.GRADIENTS, path)
        for optimizer in list(self._optimizers):
            for tensor in (tensor for group in optimizer.param_groups for tensor in group["params"]):
                if id(tensor) not in modules:  # an engine's own copy, such as a flat fp32 partition
                    yield from _owned(tensor, Factor.OPTIMIZER_STATES, "")
                    yield from _owned(tensor.grad, Factor.GRADIENTS, "")
                for state in _tensors(optimizer.state.get(tensor)):
                    yield from _owned(state, Factor.OPTIMIZER_STATES, modules.get(id(tensor), ""))


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _owned(tensor: torch.Tensor | None, factor: Factor, module: str) -> Iterator[Owned]:
    """The parts of a tensor that lie on the GPU."""
    if tensor is None:
        return
    local = getattr(tensor, "ds_tensor", tensor)  # ZeRO-3 keeps this rank's partition in ds_tensor
    inner = getattr(local, "__tensor_flatten__", None)
    if inner is not None:  # DTensor, quantised tensors
        for name in inner()[0]:
            yield from _owned(getattr(local, name), factor, module)
    elif local.is_cuda and local.numel():
        yield Owned(local.data_ptr(), local.nbytes, factor, module)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
