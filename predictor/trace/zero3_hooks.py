"""What ZeRO-3 does to a model before it runs: where parameters are gathered and released, and another linear layer.

DeepSpeed 0.19.8 hangs hooks on every module (runtime/zero/parameter_offload.py, ``_register_deepspeed_module``) and
replaces ``torch.nn.functional.linear`` (runtime/zero/linear.py). Both change the graph, and with it the order of
backward and what is saved, so a step under ZeRO-3 is traced with their counterparts. They gather nothing: they mark
in the recording where DeepSpeed would.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from predictor.events.micro_step import Mark
from predictor.trace.recorder import Recorder


class Linear(torch.autograd.Function):
    """A linear layer that saves its weight itself, not a view of it, which would keep the gathered storage."""

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
        of_tensor = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_tensor = gradient.matmul(weight)
        if ctx.needs_input_grad[1]:
            rows = gradient.reshape(-1, gradient.shape[-1]) if gradient.dim() > 2 else gradient
            of_weight = rows.t().matmul(tensor.reshape(-1, tensor.shape[-1]) if gradient.dim() > 2 else tensor)
            del rows
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = gradient.sum(list(range(gradient.dim() - 1)))
        return of_tensor, of_weight, of_bias


def _linear(tensor, weight, bias=None):
    return Linear.apply(tensor, weight, bias)


@dataclass(eq=False)
class Storage:
    """A gathered parameter's; ``held`` by a saved tensor after its release."""

    alive: bool = True
    held: bool = False


class Sharded:
    """A model whose modules gather their parameters around forward and backward.

    Args:
        model: on meta; its parameters get storages of their own while modules use them.
        recorder: told of each gather and release.
    """

    def __init__(self, model: torch.nn.Module, recorder: Recorder) -> None:
        self.recorder = recorder
        self.model = model
        self.modules = list(model.modules())
        self._number = {id(module): number for number, module in enumerate(self.modules)}
        self._index = {id(parameter): index for index, (_, parameter) in enumerate(model.named_parameters())}
        self.owned = [{self._index[id(p)] for p in module.parameters(recurse=False)} for module in self.modules]
        self._external: dict[int, list[int]] = defaultdict(list)
        self._found: list[tuple[int, int]] = []
        self._stack = [0]
        self._users: dict[int, set[int]] = defaultdict(set)
        self._parameters = list(model.parameters())
        self._gathered: dict[int, Storage] = {}
        self._in_backward: dict[int, None] = {}
        self._recomputed: dict[int, set[int]] = defaultdict(set)
        self._in_forward = True

    @contextmanager
    def active(self) -> Iterator[None]:
        """The model is sharded while the block runs."""
        originals, whole = [module._parameters for module in self.modules], [p.data for p in self._parameters]
        handles = [handle for number, module in enumerate(self.modules)
                   for handle in _Hooks(self, number).register(module)]
        linear, functional.linear = functional.linear, _linear
        for module in self.modules:
            module._parameters = _Watched(self._read, module._parameters)
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
        """Pairs of a module's number and a parameter's index; parameters that a module reads of another come last."""
        return [*self._pairs(), *self._found]

    def _pairs(self) -> list[tuple[int, int]]:
        return [(module, parameter) for module, own in enumerate(self.owned) for parameter in sorted(own)]

    def backward(self) -> None:
        """Forward has ended: parameters that are looked at from now on are not gathered for it."""
        self._in_forward = False

    def _read(self, parameter: torch.nn.Parameter) -> None:
        """A module reads a parameter; one that is not there is gathered, and the running module's from now on."""
        index = self._index.get(id(parameter))
        if index is None or not self._in_forward or index in self._gathered:
            return
        module = self._stack[-1]
        self.recorder.mark(Mark.EXTERNAL, len(self._pairs()) + len(self._found))
        self._external[module].append(index)
        self._found.append((module, index))
        self._gather(index)

    def _gather(self, index: int) -> None:
        """Give a parameter a storage, if it has none."""
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
        """Release what no other module uses, as the first step does."""
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
        """A module's forward begins. Frozen parameters that a checkpoint recomputes with stay until the backward that
        asked for them ends."""
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
        """A module's forward has ended."""
        self._stack.pop()
        self._leave(module, forward=True)
        self.recorder.mark(Mark.LEAVE, module)

    def before_backward(self, module: int) -> None:
        """A module's backward begins."""
        self.recorder.mark(Mark.BEFORE_BACKWARD, module)
        self._in_backward[module] = None
        self._use(module)

    def after_backward(self, module: int) -> None:
        """A module's backward has ended."""
        self._leave(module, forward=False)
        self.recorder.mark(Mark.AFTER_BACKWARD, module)


class _Hooks:
    """Of one module: they count its outputs and inputs on their way through backward.

    Attributes:
        calls: outputs whose gradients have not come.
        inputs_left: inputs of its latest forward whose gradients have not come.
    """

    def __init__(self, model: Sharded, number: int) -> None:
        self._model, self._number = model, number
        self.calls = self.inputs_left = 0

    def register(self, module: torch.nn.Module) -> list:
        """Their handles, in DeepSpeed's order."""
        return [module.register_forward_pre_hook(self._enter), module.register_forward_hook(self._leave),
                module.register_forward_hook(self._count_outputs), module.register_forward_pre_hook(self._count_inputs)]

    def output_came_back(self) -> None:
        """The gradient of an output is there."""
        if self.calls > 0:
            self._model.before_backward(self._number)
            self.calls -= 1

    def input_came_back(self) -> None:
        """The gradient of an input is there."""
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
    """On an output: its backward comes before the module's."""

    @staticmethod
    def forward(hooks, output):
        return output.detach()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.hooks = inputs[0]
        ctx.hooks.calls += 1

    @staticmethod
    def backward(ctx, *gradients):
        ctx.hooks.output_came_back()
        return None, *gradients


class _After(torch.autograd.Function):
    """On an input: its backward comes after the module's."""

    @staticmethod
    def forward(hooks, given):
        return given.detach()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.hooks, given = inputs
        if given.requires_grad:
            ctx.hooks.inputs_left += 1

    @staticmethod
    def backward(ctx, *gradients):
        ctx.hooks.input_came_back()
        return None, *gradients


class _Watched(dict):
    """A module's parameters; tells when one is read."""

    def __init__(self, tell: Callable, parameters) -> None:
        super().__init__(parameters)
        self._tell = tell

    def __getitem__(self, name):
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._tell(parameter)
        return parameter


def _each_tensor(function: Callable, value):
    """The function of every tensor in tuples, lists and mappings; mappings keep their identity."""
    if isinstance(value, (tuple, list)):
        results = [_each_tensor(function, item) for item in value]
        return type(value)(*results) if hasattr(value, "_fields") else type(value)(results)
    if isinstance(value, dict):
        for name in value:
            value[name] = _each_tensor(function, value[name])
        return value
    return function(value) if isinstance(value, torch.Tensor) else value
