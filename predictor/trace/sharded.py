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
        self._calls = [0] * len(self.modules)
        self._inputs_left = [0] * len(self.modules)

    @contextmanager
    def active(self) -> Iterator[None]:
        """The model is sharded while the block runs."""
        originals, whole = [module._parameters for module in self.modules], [p.data for p in self._parameters]
        handles = [handle for number in range(len(self.modules)) for handle in self._hooks(number)]
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

    def _hooks(self, number: int) -> list:
        """Of one module, in DeepSpeed's order."""
        module = self.modules[number]

        def before_backward() -> None:
            if self._calls[number] > 0:
                self.recorder.mark(Mark.BEFORE_BACKWARD, number)
                self._in_backward[number] = None
                self._use(number)
                self._calls[number] -= 1

        class Before(torch.autograd.Function):
            """On an output: its backward comes before the module's."""

            @staticmethod
            def forward(output):
                return output.detach()

            @staticmethod
            def setup_context(ctx, inputs, output):
                self._calls[number] += 1

            @staticmethod
            def backward(ctx, *gradients):
                before_backward()
                return gradients

        class After(torch.autograd.Function):
            """On an input: its backward comes after the module's."""

            @staticmethod
            def forward(given):
                return given.detach()

            @staticmethod
            def setup_context(ctx, inputs, output):
                if inputs[0].requires_grad:
                    self._inputs_left[number] += 1

            @staticmethod
            def backward(ctx, *gradients):
                self._inputs_left[number] -= 1
                if self._inputs_left[number] == 0:
                    self._leave(number, forward=False)
                    self.recorder.mark(Mark.AFTER_BACKWARD, number)
                return gradients

        def enter(_module, _inputs) -> None:
            self._stack.append(number)
            recomputing = torch._C._current_graph_task_id() != -1
            self.recorder.mark(Mark.RECOMPUTE if recomputing else Mark.ENTER, number)
            self._use(number)
            if recomputing and self._in_backward:
                owner = next(reversed(self._in_backward))
                for index in (*self.owned[number], *self._external[number]):
                    if not self._parameters[index].requires_grad:
                        self._recomputed[owner].add(index)
                        self._users[index].add(owner)

        def count_inputs(_module, inputs):
            self._inputs_left[number] = 0
            return _each_tensor(After.apply, inputs)

        def leave(_module, _inputs, _output) -> None:
            self._stack.pop()
            self._leave(number, forward=True)
            self.recorder.mark(Mark.LEAVE, number)

        def count_outputs(_module, _inputs, output):
            return _each_tensor(Before.apply, output)

        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave),
                module.register_forward_hook(count_outputs), module.register_forward_pre_hook(count_inputs)]


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
