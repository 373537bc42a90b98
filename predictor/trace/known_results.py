"""Remembers what operators return on meta tensors, so that those of repeated layers are computed once.

Most of a trace's time would go into PyTorch's own code for the meta device, much of which is Python (torch 2.11,
torch/_refs, torch/_prims_common, torch/_meta_registrations.py). What it returns depends only on the operator, the
layouts of its tensors and its other arguments, as in PyTorch's own cache for fake tensors
(torch/_subclasses/fake_tensor.py, ``_dispatch_cache_key``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors whose layout says all that an operator sees on meta."""
DETERMINED = ("Tensor", "int", "SymInt")
"""Types of results that layouts determine; the integers are lengths."""
DEPENDS_ON_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
MOST_RESULTS = 100_000
"""Results that are kept; a trace of a large model has some thousands. Beyond that they are forgotten, all at once."""


class Layout(NamedTuple):
    """The layout of a new tensor that has its storage for itself: elements for shape and strides."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def made(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


class Result(NamedTuple):
    """What an operator returns.

    Attributes:
        results: layouts of its new tensors, its integers, and None for a result that is not computed.
        is_tuple: whether it returns them as a tuple.
        returns_first: whether it changes its first argument in place and returns it.
    """

    results: tuple[Layout | int | None, ...] = ()
    is_tuple: bool = False
    returns_first: bool = False


class _Unknown(Exception):
    """A call whose result is not determined by layouts."""


class KnownResults:
    """The results of operators on meta tensors, by operator and layouts of the arguments."""

    def __init__(self) -> None:
        self._of_operator: dict[int, dict[Hashable, Result | None] | None] = {}
        """Operator, by its id, which is faster than its hash -> its results; None if layouts do not determine them."""
        self._number = 0

    def call(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The operator's results; the operator runs only if such a call is not known yet."""
        results = self._of_operator.get(id(func), ...)
        if results is ...:
            results = self._of_operator[id(func)] = {} if _is_determined(func) else None
        if results is None:
            return func(*args, **kwargs)
        try:
            key = _key(args, kwargs)
            known = results.get(key, ...)
        except (_Unknown, TypeError):  # an argument cannot be hashed
            return func(*args, **kwargs)
        if known is ...:
            out = func(*args, **kwargs)
            results[key] = _result(out, args) if _key(args, kwargs) == key else None
            self._number += 1
            if self._number == MOST_RESULTS:
                self._of_operator, self._number = {}, 0
            return out
        if known is None:
            return func(*args, **kwargs)
        if known.returns_first:
            return args[0]
        if not known.is_tuple:
            only, = known.results
            return only.made() if type(only) is Layout else only
        return tuple([one.made() if type(one) is Layout else one for one in known.results])


def _is_determined(func: torch._ops.OpOverload) -> bool:
    """Whether the operator returns new tensors, or its first argument, independently of values."""
    returns = func._schema.returns
    if DEPENDS_ON_VALUES & set(func.tags) or any(str(one.type) not in DETERMINED for one in returns):
        return False
    aliases = [one.alias_info for one in returns if one.alias_info is not None]
    return not func._schema.is_mutable if not aliases else len(returns) == 1 and aliases[0].is_write


def _key(args: tuple, kwargs: dict[str, Any]) -> tuple[Hashable, ...]:
    described: list[Any] = []
    _describe(args, described)
    if kwargs:
        described += kwargs
        _describe(kwargs.values(), described)
    return tuple(described)


def _describe(values: Iterable[Any], described: list[Any]) -> None:
    """Appends what an operator on meta sees of its arguments."""
    for value in values:
        kind = type(value)
        if kind in PLAIN:
            if not value.is_meta:
                raise _Unknown
            described += value.shape, value.stride(), value.dtype
        elif kind is list or kind is tuple:
            described += kind, len(value)
            _describe(value, described)
        elif isinstance(value, torch.Tensor):
            raise _Unknown
        else:
            described += kind, value  # 1, 1.0 and True are equal, and different arguments


def _result(out: Any, args: tuple) -> Result | None:
    """What a call returned, if other calls with such arguments return the like; None if they may not."""
    if args and out is args[0]:
        return Result(returns_first=True)
    storages = {id(tensor.untyped_storage()) for tensor in _tensors(args)}
    results: list[Layout | int | None] = []
    for tensor in out if isinstance(out, tuple) else (out,):
        if tensor is None or type(tensor) is int:
            results.append(tensor)
            continue
        if type(tensor) is not torch.Tensor or tensor.device.type != "meta":
            return None
        layout, storage = Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype), tensor.untyped_storage()
        if id(storage) in storages or layout.made().untyped_storage().nbytes() != storage.nbytes():
            return None  # a view, such as that of aten::_unsafe_view, or a part of a larger storage
        storages.add(id(storage))
        results.append(layout)
    return Result(tuple(results), isinstance(out, tuple))


def _tensors(values) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
