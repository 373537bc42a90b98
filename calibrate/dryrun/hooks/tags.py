"""Tags each allocation of a dry run with its operator and module, in the metadata text of PyTorch's memory history.

The emulated GPU's integer tracker sees every operator that runs on this thread or on autograd's. The text is set while
an operator runs, and is then the script's own again. The calls of modules and autograd's node numbers say which module
runs. Nothing is allocated, and no tensor is held.
"""

from __future__ import annotations

import bisect
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from calibrate.emulator import host_values
from calibrate.job.side_notes import own_name
from predictor.trace.module_tracker import ModuleTracker

MARK, SEPARATOR = "\x1epeakcast", "\x1f"
INSIDE, GRADIENT = "+", "="
ACCUMULATES = "torch::autograd::AccumulateGrad"
"""Name of autograd's node that gives a parameter its gradient (torch 2.11, csrc/autograd/functions/accumulate_grad.h).
It detaches a gradient that it takes as it is, and otherwise makes it with another operator. Other leaves have one, too,
such as the input of a reentrant checkpoint."""


class Tag(NamedTuple):
    """The code that requested a block.

    Attributes:
        operator: ATen's name; empty if no operator ran.
        module: dotted path; empty outside modules.
        inside: whether a module's forward ran; in backward, a checkpoint was recomputed.
        gradient: whether autograd made a parameter's gradient of other tensors.
    """

    operator: str = ""
    module: str = ""
    inside: bool = False
    gradient: bool = False


NO_TAG = Tag()


def split(text: str) -> tuple[Tag, str]:
    """The tag in an entry's metadata text, and the script's own text."""
    if not text.startswith(MARK):
        return NO_TAG, text
    _, operator, module, kind, own = text.split(SEPARATOR, 4)
    return Tag(operator, module, kind == INSIDE, kind == GRADIENT), own


class _OwnText(threading.local):
    """The script's own metadata text of a thread."""

    text = ""


class Tags(ModuleTracker):
    """Tags allocations from :meth:`begin` on.

    Args:
        model_runs: called with a module and the prefix of its paths when it first runs without being called by another.
        completes: called with a gradient that becomes a parameter's.
    """

    def __init__(self, model_runs: Callable[[torch.nn.Module, str], None],
                 completes: Callable[[torch.Tensor], None]) -> None:
        super().__init__(torch.nn.Module())
        self._model_runs, self._completes = model_runs, completes
        self._main = threading.get_ident()
        # autograd numbers the nodes of each thread separately; a recomputed (reentrant) checkpoint has its own
        self._seen: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
        self._depth = 0
        self._roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._has_model = False
        self._operators: dict[Any, str] = {}
        self._own = _OwnText()

    def begin(self) -> None:
        """Installs the hooks for the rest of this process, unless PyTorch has no metadata texts (2.11 has).
        """
        bindings: Any = torch._C
        if not hasattr(bindings, "_cuda_setMemoryMetadata"):
            return
        self._set: Callable[[str], None] = bindings._cuda_setMemoryMetadata
        bindings._cuda_setMemoryMetadata = self._set_own
        bindings._cuda_getMemoryMetadata = lambda: self._own.text
        self._wrap_calls()
        tracker = host_values.install()
        if tracker is not None:
            tracker.observer = self

    def forget(self) -> None:
        """Drops the numbers of nodes so far. Their backward has run, unless the script keeps graphs over a step."""
        self._seen = {True: [], False: []}

    def nested(self, depth: int) -> None:
        """``depth`` backwards are running now, one inside the other."""
        self._depth = depth

    # called by the integer tracker ----------------------------------------------------------------

    def begins(self, operator: Any, arguments: tuple) -> None:
        """An operator begins on this thread."""
        name = self._operators.get(operator)
        if name is None:
            name = self._operators[operator] = str(operator.name()).partition(".")[0]
        if self._stack:
            module, kind = self._stack[-1], INSIDE
        else:
            node: Any = torch._C._current_autograd_node()
            module, kind = self._module_of(node), ""
            if node is not None and node.name() == ACCUMULATES and isinstance(node.variable, torch.nn.Parameter):
                kind = GRADIENT
                if name == "aten::detach":
                    self._completes(arguments[0])
        self._set(SEPARATOR.join((MARK, name, module, kind, self._own.text)))

    def ends(self) -> None:
        """The operator ended, and the next allocation may be outside any."""
        self._set(self._own.text)

    def _module_of(self, node: Any) -> str:
        """The module whose forward created a backward function; empty for None."""
        if node is None:
            return ""
        seen = self._seen[self._depth < 2]
        index = bisect.bisect_right(seen, node._sequence_nr(), key=lambda pair: pair[0]) - 1
        return seen[index][1] if index >= 0 else ""

    # called by modules ------------------------------------------------------------------------------

    def _wrap_calls(self) -> None:
        """Follow each call of a module. Global hooks would change its stack, and what Dynamo compiles (torch 2.11,
        nn/modules/module.py, ``_call_impl``)."""
        original = torch.nn.Module._call_impl

        def _call_impl(module, *arguments, **keywords):
            if torch.compiler.is_compiling():
                return original(module, *arguments, **keywords)
            self.enter(module)
            try:
                return original(module, *arguments, **keywords)
            finally:
                self.leave()

        torch.nn.Module._call_impl = _call_impl  # type: ignore[method-assign, assignment]

    def _outermost(self, module: torch.nn.Module) -> None:
        if module in self._roots or torch._C._current_autograd_node() is not None:  # a checkpoint recomputes it
            return
        self._roots.add(module)
        new = [(name, part) for name, part in module.named_modules() if id(part) not in self._names]
        prefix = f"{type(module).__name__}." if self._has_model and new and new[0][1] is module else ""
        self._has_model = True
        for name, part in new:
            self._names[id(part)] = (prefix + own_name(name)).rstrip(".")
            weakref.finalize(part, self._names.pop, id(part), None).atexit = False
        self._model_runs(module, prefix)

    def _boundary(self) -> None:
        on_main = threading.get_ident() == self._main
        module = self._stack[-1] if self._stack else ""
        self._seen[on_main].append((torch._C._autograd._get_sequence_nr(), module))

    # called by the script ---------------------------------------------------------------------------

    def _set_own(self, text: str) -> None:
        self._own.text = text
        self._set(text)
