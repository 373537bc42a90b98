"""Counterparts of ZeRO-3's hooks on every module, and of its linear layer.

DeepSpeed 0.19.8 registers hooks on every module (runtime/zero/parameter_offload.py, ``_register_deepspeed_module``) and
replaces ``torch.nn.functional.linear`` (runtime/zero/linear.py). Both change the autograd graph, and with it the order
of backward and the saved tensors. So a step under ZeRO-3 is traced with these counterparts. They gather nothing: they
mark in the recording where DeepSpeed gathers and releases parameters.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from predictor.events.micro_step import Mark
from predictor.trace.recorder import Recorder


class Linear(torch.autograd.Function):
    """A linear layer that saves the weight itself. A saved view would keep the gathered storage alive."""

    @staticmethod
    def forward(tensor, weight, bias=None):
        if tensor.dim() == 2 and bias is not None:
            return torch.addmm(bias, tensor, weight.t())
        result = tensor.matmul(weight.t())
        if bias is not None:
            result += bias
        return result

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        tensor, weight, bias = ctx.saved_tensors
        for_tensor = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_tensor = gradient.matmul(weight)
        if ctx.needs_input_grad[1]:
            rows = gradient.reshape(-1, gradient.shape[-1]) if gradient.dim() > 2 else gradient
            for_weight = rows.t().matmul(tensor.reshape(-1, tensor.shape[-1]) if gradient.dim() > 2 else tensor)
            del rows
        if bias is not None and ctx.needs_input_grad[2]:
            for_bias = gradient.sum(list(range(gradient.dim() - 1)))
        return for_tensor, for_weight, for_bias


def _linear(tensor, weight, bias=None):
    return Linear.apply(tensor, weight, bias)


@dataclass(eq=False)
class Storage:
    """The storage of a gathered parameter.

    Attributes:
        alive: whether it has not been freed.
        held: whether a saved tensor keeps it alive after the parameter's release.
    """

    alive: bool = True
    held: bool = False


class Zero3Hooks:
    """The hooks of a model whose modules gather their parameters around forward and backward.

    Args:
        model: a model on meta; while modules use its parameters, they have separate storages.
        recorder: receives the marks.
    """

    def __init__(self, model: torch.nn.Module, recorder: Recorder) -> None:
        self.recorder = recorder
        self.model = model
        self.modules = list(model.modules())
        self._number = {id(module): number for number, module in enumerate(self.modules)}
        self._index = {id(parameter): index for index, (_, parameter) in enumerate(model.named_parameters())}
        self.owned = [{self._index[id(p)] for p in module.parameters(recurse=False)} for module in self.modules]
        self._external: dict[int, list[int]] = defaultdict(list)
        self._external_pairs: list[tuple[int, int]] = []
        self._stack = [0]
        self._users: dict[int, set[int]] = defaultdict(set)
        self._parameters = list(model.parameters())
        self._gathered: dict[int, Storage] = {}
        self._in_backward: dict[int, None] = {}
        self._recomputed: dict[int, set[int]] = defaultdict(set)
        self._in_forward = True

    @contextmanager
    def active(self) -> Iterator[None]:
        """Shards the model and registers the hooks while the block runs."""
        originals, whole = [module._parameters for module in self.modules], [p.data for p in self._parameters]
        handles = [handle for number, module in enumerate(self.modules)
                   for handle in _Hooks(self, number).register(module)]
        linear, functional.linear = functional.linear, _linear
        for module in self.modules:
            module._parameters = _ParameterDict(self._read, module._parameters)
        for parameter in self._parameters:
            parameter.data = parameter.data.new_empty(0)
        self._shapes = [data.shape for data in whole]
        try:
            yield
        finally:
            functional.linear = linear
            for handle in handles:
                handle.remove()
            for module, original in zip(self.modules, originals):
                module._parameters = original
            for parameter, data in zip(self._parameters, whole):
                parameter.data = data

    def owners(self) -> list[tuple[int, int]]:
        """Pairs of a module's number and the index of a parameter that it gathers. Parameters of other modules come
        last."""
        return [*self._pairs, *self._external_pairs]

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        return [(module, parameter) for module, own in enumerate(self.owned) for parameter in sorted(own)]

    def backward(self) -> None:
        """Ends the forward: parameters that are read from now on are not gathered."""
        self._in_forward = False

    def _read(self, parameter: torch.nn.Parameter) -> None:
        """Lets the module that is running gather a parameter that it reads, if no module has gathered it.

        The module then also gathers this parameter whenever it is called again. Only reads in the forward count.
        """
        index = self._index.get(id(parameter))
        if index is None or not self._in_forward or index in self._gathered:
            return
        module = self._stack[-1]
        self.recorder.mark(Mark.EXTERNAL, len(self._pairs) + len(self._external_pairs))
        self._external[module].append(index)
        self._external_pairs.append((module, index))
        self._gather(index)

    def _gather(self, index: int) -> None:
        """Gives a parameter a storage, unless it is gathered already."""
        if index in self._gathered:
            return
        parameter = self._parameters[index]
        with _disable_current_modes():
            parameter.data = torch.empty(self._shapes[index], dtype=parameter.dtype, device=parameter.device)
        self.recorder.ignore([parameter])
        storage = self._gathered[index] = Storage()

        def died() -> None:
            storage.alive = False
            if storage.held:
                self.recorder.mark(Mark.LET_GO, index)

        weakref.finalize(parameter.untyped_storage(), died).atexit = False

    def _use(self, module: int) -> None:
        for index in (*self.owned[module], *self._external[module]):
            self._gather(index)
            self._users[index].add(module)

    def _leave(self, module: int, *, forward: bool) -> None:
        """Releases the parameters that no other module uses, as DeepSpeed does in the first step."""
        indices = {*self.owned[module], *self._external[module]}
        if not forward:
            indices |= self._recomputed.pop(module, set())
            self._in_backward.pop(module, None)
        for index in sorted(indices):
            self._users[index].discard(module)
            if index in self._gathered and not self._users[index]:
                storage, parameter = self._gathered.pop(index), self._parameters[index]
                with _disable_current_modes():
                    parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
                if storage.alive:
                    storage.held = True
                    self.recorder.mark(Mark.HOLD, index)

    def enter(self, module: int) -> None:
        """Called when a module's forward begins. Frozen parameters that a recomputation gathers stay until the backward
        that started the recomputation ends."""
        self._stack.append(module)
        recomputing = torch._C._current_graph_task_id() != -1
        self.recorder.mark(Mark.RECOMPUTE if recomputing else Mark.ENTER, module)
        self._use(module)
        if recomputing and self._in_backward:
            owner = next(reversed(self._in_backward))
            for index in (*self.owned[module], *self._external[module]):
                if not self._parameters[index].requires_grad:
                    self._recomputed[owner].add(index)
                    self._users[index].add(owner)

    def leave(self, module: int) -> None:
        """Called when a module's forward has ended."""
        self._stack.pop()
        self._leave(module, forward=True)
        self.recorder.mark(Mark.LEAVE, module)

    def before_backward(self, module: int) -> None:
        """Called when a module's backward begins."""
        self.recorder.mark(Mark.BEFORE_BACKWARD, module)
        self._in_backward[module] = None
        self._use(module)

    def after_backward(self, module: int) -> None:
        """Called when a module's backward has ended."""
        self._leave(module, forward=False)
        self.recorder.mark(Mark.AFTER_BACKWARD, module)


class _Hooks:
    """The hooks of one module. They count the gradients of its outputs and inputs to find its backward.

    Attributes:
        calls: outputs whose gradients are not complete.
        inputs_left: inputs of the latest forward whose gradients are not complete.
    """

    def __init__(self, model: Zero3Hooks, number: int) -> None:
        self._model, self._number = model, number
        self.calls = self.inputs_left = 0

    def register(self, module: torch.nn.Module) -> list:
        """Registers the hooks in DeepSpeed's order and returns their handles."""
        return [module.register_forward_pre_hook(self._enter), module.register_forward_hook(self._leave),
                module.register_forward_hook(self._count_outputs), module.register_forward_pre_hook(self._count_inputs)]

    def output_came_back(self) -> None:
        """Called when the gradient of an output is complete."""
        if self.calls > 0:
            self._model.before_backward(self._number)
            self.calls -= 1

    def input_came_back(self) -> None:
        """Called when the gradient of an input is complete."""
        self.inputs_left -= 1
        if self.inputs_left == 0:
            self._model.after_backward(self._number)

    def _enter(self, _module, _inputs) -> None:
        self._model.enter(self._number)

    def _leave(self, _module, _inputs, _output) -> None:
        self._model.leave(self._number)

    def _count_inputs(self, _module, inputs):
        self.inputs_left = 0
        return _each_tensor(partial(_After.apply, self), inputs)

    def _count_outputs(self, _module, _inputs, output):
        return _each_tensor(partial(_Before.apply, self), output)


class _Before(torch.autograd.Function):
    """Identity on an output. Its backward runs before the module's backward."""

    @staticmethod
    def forward(ctx, hooks, output):
        ctx.hooks = hooks
        hooks.calls += 1
        return output.detach()

    @staticmethod
    def backward(ctx, *gradients):
        ctx.hooks.output_came_back()
        return None, *gradients


class _After(torch.autograd.Function):
    """Identity on an input. Its backward runs after the module's backward."""

    @staticmethod
    def forward(ctx, hooks, tensor):
        ctx.hooks = hooks
        if tensor.requires_grad:
            hooks.inputs_left += 1
        return tensor.detach()

    @staticmethod
    def backward(ctx, *gradients):
        ctx.hooks.input_came_back()
        return None, *gradients


class _ParameterDict(dict):
    """A module's parameters; calls ``on_read`` with each parameter that is read."""

    def __init__(self, on_read: Callable, parameters) -> None:
        super().__init__(parameters)
        self._on_read = on_read

    def __getitem__(self, name):
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._on_read(parameter)
        return parameter


def _each_tensor(function: Callable, value):
    """Applies a function to every tensor in nested tuples, lists and dictionaries. Dictionaries are changed in place.
    """
    if isinstance(value, (tuple, list)):
        results = [_each_tensor(function, item) for item in value]
        return type(value)(*results) if hasattr(value, "_fields") else type(value)(results)
    if isinstance(value, dict):
        for name in value:
            value[name] = _each_tensor(function, value[name])
        return value
    return function(value) if isinstance(value, torch.Tensor) else value
