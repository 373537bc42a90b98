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
        self._known = KnownResults()
        self._lasting_workspaces: set[tuple[str, bool]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(has_own_dispatch, types)):
            return NotImplemented
        kwargs = kwargs or {}
        name = func._schema.name
        if name in READS:
            answer = READS[name](self.host_values, args, kwargs)
            if answer is not UNKNOWN:
                self._play(name, args, kwargs, answer)
                return answer
        func, args = self.as_without_mode(func, args)
        name = func._schema.name
        if name in MASKED:
            args = (args[0], self._positions(args[1]), *args[2:])
        out = REPLACEMENTS[name](*args, **kwargs) if name in REPLACEMENTS else self._known.call(func, args, kwargs)
        if name in RESULTS:
            out = RESULTS[name](args, out)
        self.host_values.follow(func, args, kwargs, _tensors(out))
        self._play(name, args, kwargs, out)
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
            self._play("aten::nonzero", (index,), {}, places)
            expanded += places.unbind(1)
        return expanded

    def _play(self, name: str, args, kwargs, out) -> None:
        """Records the allocations and frees of an operator call on CUDA."""
        tensors = _tensors(out)

        def results(*first, size=None) -> None:
            for tensor in first or tensors:
                self.watch(tensor, name, size=size)

        def once(function: str) -> None:
            thread = self.moment is Moment.BACKWARD  # autograd's device thread has its own library handles
            if (function, thread) not in self._lasting_workspaces:
                self._lasting_workspaces.add((function, thread))
                self.allocate((function, ()), name, "workspace")

        play = operators.TABLE.get(name, operators.results_only)
        play(operators.Call(args, kwargs, tensors, lambda size: self.allocate(size, name, "workspace"), self.free,
                            results, once))


def _tensors(out) -> list[torch.Tensor]:
    return [leaf for leaf in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(leaf, torch.Tensor)]
