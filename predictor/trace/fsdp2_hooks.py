"""Counterparts of FSDP2's hooks on each unit that ``fully_shard`` was called on.

They gather nothing: they mark in the recording where FSDP2 gathers and releases parameters. Sources: PyTorch 2.11,
torch/distributed/fsdp/_fully_shard: _fsdp_state.py (``_pre_forward``, ``_post_forward``, ``_pre_backward``,
``_root_post_backward_final_callback``), _fsdp_param_group.py (``RegisterPostBackwardFunction``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd import Variable
from torch.utils._pytree import tree_flatten, tree_unflatten

from predictor.events.micro_step import Mark
from predictor.model import fsdp
from predictor.trace.recorder import Recorder

ROOT = 0
"""The module number of the whole model."""


class Fsdp2Hooks:
    """The hooks of a model whose units FSDP2 shards.

    Args:
        model: a model on meta.
        recorder: receives the marks.
        names: names of the units, as :func:`predictor.model.fsdp.units` takes them.
    """

    def __init__(self, model: torch.nn.Module, recorder: Recorder, names: tuple[str, ...]) -> None:
        self.recorder = recorder
        self.model = model
        self.units = fsdp.units(model, names)
        self._number = {id(module): number for number, module in enumerate(model.modules())}
        self._final_queued = False

    def owners(self) -> list[tuple[int, int]]:
        """Pairs of a unit's number and the index of one of its parameters or buffers, both in FSDP2's order."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        index = {id(tensor): number for number, tensor in enumerate(tensors)}
        return [(self._number[id(unit)], index[key]) for unit in self.units
                for key in dict.fromkeys(id(tensor) for module in fsdp.managed_modules(unit, self.units)
                                         for tensor in (*module.parameters(False), *module.buffers(False)))]

    def backward(self) -> None:
        """Resets the final mark. It is called when the forward has ended."""
        self._final_queued = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Registers the hooks while the block runs."""
        handles = [handle for unit in self.units for handle in _Hooks(self, self._number[id(unit)]).register(unit)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def queue_final(self) -> None:
        """Queues the mark at which the model's own backward ends: after the whole backward."""
        if not self._final_queued:
            self._final_queued = True
            Variable._execution_engine.queue_callback(lambda: self.recorder.mark(Mark.AFTER_BACKWARD, ROOT))


class _Hooks:
    """The hooks of one unit."""

    def __init__(self, model: Fsdp2Hooks, number: int) -> None:
        self._model, self._mark, self._number = model, model.recorder.mark, number

    def register(self, unit: torch.nn.Module) -> list:
        """Registers the hooks and returns their handles."""
        return [unit.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True),
                unit.register_forward_hook(self._leave)]

    def after_backward(self) -> None:
        """Marks the end of the unit's backward: the gradients of its inputs are complete."""
        self._mark(Mark.AFTER_BACKWARD, self._number)

    def _enter(self, _module, args, kwargs):
        if _in_backward():
            self._mark(Mark.RECOMPUTE, self._number)
            return args, kwargs
        self._mark(Mark.ENTER, self._number)
        values, structure = tree_flatten((args, kwargs))
        places = [place for place, value in enumerate(values) if torch.is_tensor(value) and value.requires_grad]
        if places and torch.is_grad_enabled():
            for place, value in zip(places, _PostBackward.apply(self, *(values[place] for place in places))):
                values[place] = value
        return tree_unflatten(values, structure)

    def _leave(self, _module, _inputs, output) -> None:
        if _in_backward():
            return
        self._mark(Mark.LEAVE, self._number)
        for value in tree_flatten(output)[0] if torch.is_grad_enabled() else ():
            if torch.is_tensor(value) and value.requires_grad:
                value.register_hook(self._before_backward)

    def _before_backward(self, gradient):
        self._model.queue_final()
        self._mark(Mark.BEFORE_BACKWARD, self._number)
        return gradient


class _PostBackward(torch.autograd.Function):
    """Identity on a unit's inputs. Its backward runs after the unit's backward."""

    @staticmethod
    def forward(ctx, hooks, *inputs):
        ctx.hooks = hooks
        return inputs

    @staticmethod
    def backward(ctx, *gradients):
        ctx.hooks.after_backward()
        return None, *gradients


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
