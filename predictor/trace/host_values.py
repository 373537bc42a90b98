"""Real values of integer and boolean meta tensors, in host memory.

The control flow of models depends on token ids: they count image tokens, build masks and index. On the
meta device those reads fail. So every integer or boolean meta storage gets a host storage of the same
layout, and each operator on such tensors runs a second time on the host values. Floating-point tensors
have no host values, as only their sizes matter, but for those that :data:`KEEPS_VALUES` makes of integers: their values
are computed if an operator reads them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils._pytree import tree_map

from predictor.model.control_tensors import is_discrete

_IS_UNREAD = ContextVar("_IS_UNREAD", default=False)
KEEPS_VALUES = {"aten::_to_copy", "aten::div"}
"""Operators whose floating-point results have values: Gemma 4 counts the patches of a picture with averages of ones
(transformers 5.17, models/gemma4/modeling_gemma4.py, ``_avg_pool_by_positions``)."""
_FACTORY_KEYWORDS = {"device": torch.device("cpu"), "pin_memory": False}


@contextmanager
def unread() -> Iterator[None]:
    """Inside this context results get no values: for tensors that no code of a model sees."""
    token = _IS_UNREAD.set(True)
    try:
        yield
    finally:
        _IS_UNREAD.reset(token)


class HostValues:
    """Host storages by meta storage. It holds no reference to a meta storage, which would change what autograd does."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage | None] = {}
        self._computed: dict[int, Callable[[], torch.Tensor]] = {}

    def adopt(self, tensor: torch.Tensor, values: torch.Tensor | None = None) -> None:
        """Gives the storage of a meta tensor its values, or zeros if ``values`` is None.

        Zeros are allocated at the first read; dropout masks, for example, are never read.
        """
        storage = tensor.untyped_storage()
        key = id(storage)
        self._storages[key] = None
        weakref.finalize(storage, self._storages.pop, key, None)
        if values is not None:
            host = self.of(tensor)
            assert host is not None  # it was adopted above
            host.copy_(values)

    def _has(self, tensor: torch.Tensor) -> bool:
        key = id(tensor.untyped_storage())
        return tensor.device.type != "meta" or key in self._storages or key in self._computed

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor's values on the host, or None if they are unknown."""
        if tensor.device.type != "meta":
            return tensor
        if not self._has(tensor):
            return None
        storage = tensor.untyped_storage()
        key = id(storage)
        host = self._computed[key]().untyped_storage() if key in self._computed else self._storages[key]
        if host is None:
            zeros = torch.UntypedStorage(storage.nbytes(), device="cpu")
            host = self._storages[key] = zeros.fill_(0)  # type: ignore[attr-defined]  # the stub lacks it
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(host, tensor.storage_offset(), tensor.shape, tensor.stride())

    def follow(self, func, args, kwargs, outputs: list[torch.Tensor]) -> None:
        """Updates the host values of an operator's integer and boolean results, after it ran on meta tensors."""
        if func._schema.name in KEEPS_VALUES and outputs[0].is_floating_point() and outputs[0].is_meta:
            self._compute_later(func, args, kwargs, outputs[0])
        fresh = [out for out in outputs if is_discrete(out) and not self._has(out)]
        if not fresh and not (func._schema.is_mutable and any(map(is_discrete, outputs))):
            return
        if _IS_UNREAD.get():
            return
        results = self.run(func, args, kwargs)
        results = results if results and len(results) == len(outputs) else None
        arguments = set() if results else {id(leaf.untyped_storage()) for leaf in _tensors((args, kwargs.values()))
                                           if is_discrete(leaf)}
        for index, out in enumerate(outputs):  # a view of unknown values, such as packed weights, stays unknown
            if any(out is new for new in fresh) and id(out.untyped_storage()) not in arguments:
                self.adopt(out, results[index] if results else None)

    def _compute_later(self, func, args, kwargs, result: torch.Tensor) -> None:
        """Gives a floating-point result its values, if those of the arguments are known."""
        storage = result.untyped_storage()
        arguments = list(_tensors((args, kwargs.values())))
        if id(storage) in self._computed or not arguments or not all(map(self._has, arguments)):
            return
        host_args, host_kwargs = self._on_host(args, kwargs)
        self._computed[id(storage)] = lambda: func(*host_args, **host_kwargs)
        weakref.finalize(storage, self._computed.pop, id(storage), None)

    def like(self, values: torch.Tensor) -> torch.Tensor:
        """A new meta tensor with these values."""
        tensor = torch.empty_like(values, device="meta")
        self.adopt(tensor, values)
        return tensor

    def run(self, func, args, kwargs) -> list[torch.Tensor] | None:
        """Results of an operator on the host values of its arguments; None if a value is unknown."""
        if not all(map(self._has, _tensors((args, kwargs.values())))):
            return None
        host_args, host_kwargs = self._on_host(args, kwargs)
        if func is torch.ops.aten.histc.default:  # CPU kernels count only floats
            return [func(host_args[0].double(), *host_args[1:], **host_kwargs).to(host_args[0].dtype)]
        result = func(*host_args, **host_kwargs)
        return [result] if isinstance(result, torch.Tensor) else list(result)

    def _on_host(self, args, kwargs) -> tuple[tuple, dict[str, Any]]:
        """An operator's arguments with host values in place of meta tensors."""
        host_args, host_kwargs = tree_map(lambda v: self.of(v) if isinstance(v, torch.Tensor) else v, (args, kwargs))
        host_kwargs |= {key: value for key, value in _FACTORY_KEYWORDS.items() if key in host_kwargs}
        return tree_map(lambda v: torch.device("cpu") if isinstance(v, torch.device) else v, host_args), host_kwargs


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among an operator's arguments, which may be lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple, ValuesView)):
            yield from _tensors(value)
