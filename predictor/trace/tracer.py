"""Records the operator calls of a model on meta tensors as a GPU would play them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from predictor.events.events import Moment
from predictor.trace import operators
from predictor.trace.cuda_paths import REPLACEMENTS, RESULTS
from predictor.trace.host_values import HostValues
from predictor.trace.known_results import KnownResults
from predictor.trace.recorder import Recorder, has_own_dispatch
from predictor.trace.value_reads import READS, UNKNOWN

MASKED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""Operators that accept boolean masks as indices."""


class Tracer(Recorder):
    """A recorder for the meta device: integers have real values, and CUDA's temporaries and workspaces are added."""

    def __init__(self, place) -> None:
        super().__init__(place)
        self.host_values = HostValues()
        self._known = _KNOWN
        self._lasting_workspaces: set[tuple[str, bool]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(has_own_dispatch, types)):
            return NotImplemented
        kwargs = kwargs or {}
        name = _name(func)
        if name in READS:
            answer = READS[name](self.host_values, args, kwargs)
            if answer is not UNKNOWN:
                self._play(name, args, kwargs, _tensors(answer))
                return answer
        called, args = self.as_without_mode(func, args)
        if called is not func:
            func, name = called, _name(called)
        if name in MASKED:
            args = (args[0], self._positions(args[1]), *args[2:])
        out = REPLACEMENTS[name](*args, **kwargs) if name in REPLACEMENTS else self._known.call(func, args, kwargs)
        if name in RESULTS:
            out = RESULTS[name](args, out)
        tensors = _tensors(out)
        self.host_values.follow(func, args, kwargs, tensors)
        self._play(name, args, kwargs, tensors)
        return out

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """As :meth:`Recorder.unseen`; workspaces that the block allocates are allocated again later."""
        workspaces = set(self._lasting_workspaces)
        with super().unseen():
            yield
        self._lasting_workspaces = workspaces

    def _positions(self, indices) -> list[torch.Tensor | None]:
        """Indices, with each mask replaced by the positions of its true values (ATen/native/IndexingUtils.h,
        expandTensors)."""
        expanded: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype != torch.bool or not index.is_meta:
                expanded.append(index)
                continue
            places = READS["aten::nonzero"](self.host_values, (index,), {})
            self._play("aten::nonzero", (index,), {}, [places])
            expanded += places.unbind(1)
        return expanded

    def _play(self, name: str, args, kwargs, tensors: list[torch.Tensor]) -> None:
        """Records the allocations and frees of an operator call on CUDA that returns these tensors."""
        play = operators.TABLE.get(name)
        if play is None:  # it allocates its results and nothing else, as most do
            for tensor in tensors:
                self.watch(tensor, name)
            return

        def results(*first, size=None) -> None:
            for tensor in first or tensors:
                self.watch(tensor, name, size=size)

        def once(function: str) -> None:
            thread = self.moment is Moment.BACKWARD  # autograd's device thread has its own library handles
            if (function, thread) not in self._lasting_workspaces:
                self._lasting_workspaces.add((function, thread))
                self.allocate((function, ()), name, "workspace")

        play(operators.Call(args, kwargs, tensors, lambda size: self.allocate(size, name, "workspace"), self.free,
                            results, once))


_KNOWN = KnownResults()
"""Of all traces of this process: what operators return does not depend on the model."""
_NAMES: dict[int, str] = {}
"""Names of operators by their ids: operators are never freed, and their own hashes and names take time."""


def _name(func: torch._ops.OpOverload) -> str:
    name = _NAMES.get(id(func))
    if name is None:
        name = _NAMES[id(func)] = func._schema.name
    return name


def _tensors(out) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    return [leaf for leaf in out if isinstance(leaf, torch.Tensor)] if isinstance(out, (tuple, list)) else []
