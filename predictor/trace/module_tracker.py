"""Tracks the running module: in forward by module hooks, in backward by the numbers of autograd's nodes."""

from __future__ import annotations

import bisect
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModuleTracker:
    """The path of the running module, in forward, recomputation and backward.

    Autograd numbers its nodes in the order of forward. The tracker records the current number at each
    module boundary, and so knows the module of each backward function later. It uses no backward hooks: they
    would insert nodes of their own and change which tensors are alive.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._modules: list[str] = []
        self.in_backward = False

    def __call__(self) -> tuple[str, bool]:
        """The module path, and whether an activation checkpoint is being recomputed."""
        if self._stack:
            return self._stack[-1], self.in_backward
        node = torch._C._current_autograd_node() if self.in_backward else None
        if node is None:
            return "", False
        index = bisect.bisect_right(self._numbers, node._sequence_nr()) - 1
        return (self._modules[index] if index >= 0 else ""), False

    def _outermost(self, module: torch.nn.Module) -> None:
        """Called before a module runs that no other module has called; subclasses may override it."""

    def _boundary(self) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._modules.append(self._stack[-1] if self._stack else "")

    def enter(self, module: torch.nn.Module) -> None:
        """The forward of a module begins."""
        if not self._stack:
            self._outermost(module)
        self._stack.append(self._names.get(id(module), self._stack[-1] if self._stack else ""))
        self._boundary()

    def leave(self) -> None:
        """It ended, or raised an exception."""
        self._stack.pop()
        self._boundary()

    @contextmanager
    def active(self):
        """Tracks every module of the model while the block runs."""

        def enter(module, _inputs) -> None:
            self.enter(module)

        def leave(_module, _inputs, _output) -> None:
            self.leave()

        # always_call, because a non-reentrant checkpoint ends its recomputation with an exception.
        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()
