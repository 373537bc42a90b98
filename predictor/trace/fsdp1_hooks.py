"""FSDP1's wrappers around a model's units, on meta: flat parameters, their views in forward, and their gradients.

They gather nothing: they mark in the recording where FSDP1 gathers and releases flat parameters. The views, which
autograd tracks, are real, and so are the flat gradients that their backward makes. Sources: PyTorch 2.11,
torch/distributed/fsdp: fully_sharded_data_parallel.py (``forward``), _runtime_utils.py (``_pre_forward``,
``_post_forward``, ``_pre_backward_hook``, ``_post_backward_hook``), _flat_param.py (``_use_unsharded_views``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves, tree_map_only

from predictor.common.dtypes import TORCH_NAMES
from predictor.common.errors import InputError
from predictor.events.micro_step import Mark
from predictor.model import fsdp
from predictor.model.fsdp import FlatUnits
from predictor.trace.recorder import Recorder
from predictor.workload.fsdp1_keys import ALIGNMENT_BYTES, flattened

ROOT = 0
"""The module number of the whole model."""


class Fsdp1Hooks:
    """The wrappers and flat parameters of a model whose units FSDP1 shards.

    Args:
        model: a model on meta.
        recorder: receives the marks and the flat gradients.
        names: names of the units, as :func:`predictor.model.fsdp.units` takes them.
        flat: how the units' parameters are flattened.
    """

    def __init__(self, model: torch.nn.Module, recorder: Recorder, names: tuple[str, ...], flat: FlatUnits) -> None:
        self.recorder, self.model, self.flat = recorder, model, flat
        numbers = {id(module): number for number, module in enumerate(model.modules())}
        modules = fsdp.units(model, names)
        self.units = [_Unit(self, module, numbers[id(module)], set(map(id, modules)) - {id(module)})
                      for module in modules]
        index = {id(tensor): number for number, tensor in enumerate([*model.parameters(), *model.buffers()])}
        self._owners = [(unit.number, index[id(tensor)]) for unit in self.units
                        for tensor in dict.fromkeys((*unit.parameters, *unit.buffers))]
        self._final_queued = False

    def owners(self) -> list[tuple[int, int]]:
        """Pairs of a unit's number and the index of one of its parameters or buffers, in the order of their moves."""
        return self._owners

    def backward(self) -> None:
        """Resets the final mark. It is called when the forward has ended."""
        self._final_queued = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Wraps the units, and casts the buffers, while the block runs."""
        *inner, root = self.units
        parents = [(parent, name, child) for parent in self.model.modules() for name, child in parent.named_children()]
        wrappers = {id(unit.module): _Wrapper(unit) for unit in inner}
        handles = [root.module.register_forward_pre_hook(root.enter_root, prepend=True, with_kwargs=True),
                   root.module.register_forward_hook(lambda _module, _inputs, output: root.leave(output))]
        buffers = [(module, name, buffer) for module in self.model.modules()
                   for name, buffer in module._buffers.items() if buffer is not None and buffer.is_floating_point()]
        for unit in self.units:
            unit.flatten()
        if self.flat.buffer_dtype:
            for module, name, buffer in buffers:
                module._buffers[name] = buffer.to(getattr(torch, TORCH_NAMES[self.flat.buffer_dtype]))
                self.recorder.ignore([module._buffers[name]])
        for parent, name, child in parents:
            if id(child) in wrappers:
                parent._modules[name] = wrappers[id(child)]
        try:
            yield
        finally:
            for parent, name, child in parents:
                parent._modules[name] = child
            for module, name, buffer in buffers:
                module._buffers[name] = buffer
            for unit in self.units:
                unit.restore()
            for handle in handles:
                handle.remove()

    def queue_final(self) -> None:
        """Queues ``_post_backward_final_callback``, after the whole backward."""
        if not self._final_queued:
            self._final_queued = True
            Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        """Marks the end, and removes the units' hooks, which keep parts of autograd's graph alive."""
        self.recorder.mark(Mark.AFTER_BACKWARD, ROOT)
        for unit in self.units:
            unit.finalize()


class _Wrapper(torch.nn.Module):
    """The wrapper around a unit's module: its forward runs the hooks, outside of activation checkpoints in it."""

    def __init__(self, unit: _Unit) -> None:
        super().__init__()
        self._fsdp_wrapped_module = unit.module
        self._unit = [unit]  # in a list: no submodule

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        unit = self._unit[0]
        unit.enter(args, kwargs)
        return unit.leave(self._fsdp_wrapped_module(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)


class _Unit:
    """One unit: a module with the flat parameter of all tensors that belong to no unit inside it."""

    def __init__(self, model: Fsdp1Hooks, module: torch.nn.Module, number: int, others: set[int]) -> None:
        self._model, self._mark, self.module, self.number = model, model.recorder.mark, module, number
        managed = list(_breadth_first(module, others))
        self.parameters = [parameter for part in managed for parameter in part.parameters(False)]
        self.buffers = [buffer for part in managed for buffer in part.buffers(False)]
        own = set(map(id, managed))
        self._places = [(part, name, parameter) for part in module.modules() if id(part) in own
                        for name, parameter in part._parameters.items() if parameter is not None]
        self._names = {id(parameter): name for name, parameter in model.model.named_parameters()}
        self._views: dict[int, torch.Tensor] = {}
        self._flat: torch.nn.Parameter | None = None
        self._parts: list[tuple[int, bool]] = []
        self._handle: Any = None
        self._begin = 0

    def flatten(self) -> None:
        """Makes the flat parameter (``FlatParamHandle._init_flat_param_and_metadata``)."""
        distinct = list({id(parameter): parameter for _, _, parameter in self._places}.values())
        if not distinct:
            return
        flat, first = self._model.flat, distinct[0]
        dtype = getattr(torch, TORCH_NAMES[flat.param_dtype]) if flat.param_dtype else first.dtype
        alignment = ALIGNMENT_BYTES // dtype.itemsize if flat.original else 0
        self._parts = flattened([parameter.numel() for parameter in distinct], alignment, flat.degree)
        trains = any(parameter.requires_grad for parameter in distinct)
        if not flat.original and not all(parameter.requires_grad == trains for parameter in distinct):
            names = [next(self._names[id(p)] for p in distinct if p.requires_grad is state) for state in (True, False)]
            raise InputError(f"fsdp1: {names[0]} trains and {names[1]} does not, in one unit, and FSDP1 stops at that "
                             "without use_orig_params: give use_orig_params true")
        self._flat = torch.nn.Parameter(torch.empty(sum(numel for numel, _ in self._parts), dtype=dtype, device="meta"),
                                        requires_grad=trains)
        self._model.recorder.ignore([self._flat])
        if trains:
            name = self._names[id(first)]
            self._flat.register_post_accumulate_grad_hook(lambda flat: self._gradient_ready(name, flat))

    def restore(self) -> None:
        """Puts the original parameters back."""
        for part, name, parameter in self._places:
            part._parameters[name] = parameter
        self._views.clear()
        self._flat = None

    def enter_root(self, _module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The root's ``_root_pre_forward``, which casts inputs under mixed precision, and ``_pre_forward``."""
        if self._model.flat.param_dtype:
            dtype = getattr(torch, TORCH_NAMES[self._model.flat.param_dtype])
            args, kwargs = tree_map_only(
                torch.Tensor, lambda value: value.to(dtype) if value.is_floating_point() else value, (args, kwargs))
        self.enter(args, kwargs)
        return args, kwargs

    def enter(self, args: tuple, kwargs: dict) -> None:
        """``_pre_forward``."""
        if _in_backward():
            return
        self._mark(Mark.ENTER, self.number)
        if self._flat is None:
            return
        with torch.enable_grad():
            pieces = torch.split(self._flat, [numel for numel, _ in self._parts], dim=0)
            views = iter([piece for piece, (_, padding) in zip(pieces, self._parts) if not padding])
        if self._flat.requires_grad:
            assert pieces[0].grad_fn is not None  # pieces of a tensor with a gradient
            pieces[0].grad_fn.register_prehook(self._before_flat_gradient)
        del pieces
        self._views = {}
        with torch.enable_grad():
            for _, _, parameter in self._places:
                if id(parameter) not in self._views:
                    view = self._views[id(parameter)] = next(views).view(parameter.shape)
                    if view.requires_grad:
                        view.register_hook(self._of_view)
        self._use_views()
        if torch.is_grad_enabled() and not self._flat.requires_grad and self._handle is None:
            inputs = [value for value in tree_leaves((args, kwargs)) if torch.is_tensor(value) and value.requires_grad]
            self._handle = _when_complete(inputs, self._reshard_only)

    def leave(self, output: Any) -> Any:
        """``_post_forward``."""
        if _in_backward():
            return output
        self._mark(Mark.LEAVE, self.number)
        values = [value for value in tree_leaves(output) if torch.is_tensor(value) and value.requires_grad]
        if values and torch.is_grad_enabled():
            self._mark(Mark.EXPECT, self.number)
            for value in values:
                value.register_hook(self._before_backward)
        return output

    def finalize(self) -> None:
        """``_finalize_params``."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _use_views(self) -> None:
        for part, name, parameter in self._places:
            part._parameters[name] = self._views[id(parameter)]  # type: ignore[assignment]  # as FSDP1 does

    def _before_backward(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.number == ROOT:
            self._model.queue_final()
        self._mark(Mark.BEFORE_BACKWARD, self.number)
        return gradient

    def _of_view(self, gradient: torch.Tensor) -> None:
        """Marks a parameter's gradient: the flat gradient is made of it on the stream on which the views were made
        (torch/csrc/autograd/input_buffer.cpp records a gradient on the stream of the function that takes it)."""
        row = self._model.recorder.row_of(gradient)
        if row is not None:
            self._mark(Mark.SHARE, row)

    def _before_flat_gradient(self, _gradients: Any) -> None:
        self._begin = len(self._model.recorder.recording.buffers)

    def _gradient_ready(self, name: str, flat: torch.Tensor) -> None:
        assert flat.grad is not None  # this hook runs after its accumulation
        for row in range(self._begin, len(self._model.recorder.recording.buffers)):
            self._mark(Mark.AWAY, row)
        self._model.recorder.gradient_ready(name, flat.grad)

    def _reshard_only(self, _gradients: Any) -> None:
        self._mark(Mark.AFTER_BACKWARD, self.number)


def _when_complete(tensors: list[torch.Tensor], function: Any) -> Any:
    """Calls a function when all tensors have their gradients.

    ``register_multi_grad_hook`` makes a cycle of a tensor's function and its own hook, which Python's garbage collector
    frees within some hundred objects. It is paused in a trace, so one tensor, the usual number, gets a plain hook.
    """
    if len(tensors) == 1:
        return tensors[0].register_hook(lambda _gradient: function(None))
    return register_multi_grad_hook(tensors, function)


def _breadth_first(module: torch.nn.Module, others: set[int]) -> Iterator[torch.nn.Module]:
    """The modules of a unit in the order in which they are moved (_init_utils.py, ``_move_module_to_device``)."""
    queue = deque([module])
    while queue:
        part = queue.popleft()
        yield part
        queue.extend(child for child in part.children() if id(child) not in others)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
