"""Computes the values that operators read back from the device to determine the size of a result.

Inside such an operator PyTorch copies a few bytes to the host, then allocates
the result. For each of these operators, a function computes the bytes from the
twins of its arguments, and the emulated runtime returns them (csrc/device.c).
For other operators the bytes are zero, which means an empty result.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_INT_MAX = 2**31 - 1
_emulator = ctypes.CDLL(None)  # this module is only used in processes that have loaded the emulator

ReadBacks = list[bytes]


def _arguments(args: tuple, kwargs: dict, *names: str) -> list[Any]:
    return [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)]


def count_nonzero(mask: torch.Tensor) -> int:
    """The number of elements that are not zero. Expanded dimensions only multiply it, so that they take no time."""
    copies = 1
    for dim in reversed(range(mask.dim())):
        if mask.stride(dim) == 0 and mask.size(dim) > 1:
            copies *= mask.size(dim)
            mask = mask.select(dim, 0)
    return copies * int(torch.count_nonzero(mask))


def _count_bytes(count: int, elements: int) -> bytes:
    """The count as the bytes that `nonzero` reads back.

    It reads one 32-bit count for each chunk (aten/src/ATen/native/cuda/Nonzero.cu):
    one chunk for up to INT_MAX - 1 elements, else chunks of 2**30. The
    distribution of the count over the chunks has no effect.
    """
    chunks = 1 if elements < _INT_MAX else -(-elements // 2**30)
    counts = []
    for _ in range(chunks):
        counts.append(min(count, 2**30) if chunks > 1 else count)
        count -= counts[-1]
    return struct.pack(f"{chunks}i", *counts)


def _nonzero(twins: Any, args: tuple, kwargs: dict) -> ReadBacks:
    return [_count(twins, args[0], args[0].shape)]


def _known(twins: Any, tensor: torch.Tensor) -> torch.Tensor | None:
    return None if tensor.is_floating_point() or tensor.is_complex() else twins.of(tensor)


def _count(twins: Any, mask: torch.Tensor, shape: torch.Size) -> bytes:
    known = _known(twins, mask)
    return _count_bytes(0 if known is None else count_nonzero(known.expand(shape)), shape.numel())


def _index(twins: Any, args: tuple, kwargs: dict) -> ReadBacks:
    _, indices = _arguments(args, kwargs, "self", "indices")
    masks = [i for i in indices if i is not None and i.is_cuda and i.dtype in (torch.bool, torch.uint8)]
    return [_count(twins, mask, mask.shape) for mask in masks]


def _masked_select(twins: Any, args: tuple, kwargs: dict) -> ReadBacks:
    tensor, mask = _arguments(args, kwargs, "self", "mask")
    return [_count(twins, mask, torch.broadcast_shapes(tensor.shape, mask.shape))]


def _masked_scatter_backward(twins: Any, args: tuple, kwargs: dict) -> ReadBacks:
    """It selects from the gradient (TensorAdvancedIndexing.cpp, masked_scatter_backward)."""
    gradient, mask = _arguments(args, kwargs, "grad_output", "mask")
    return _masked_select(twins, (gradient, mask), {})


def _repeat_interleave(twins: Any, args: tuple, kwargs: dict) -> ReadBacks:
    repeats = _known(twins, args[0])
    total = 0 if repeats is None else int(repeats.sum())
    return [struct.pack("q", total), b"\1"]  # the sum, then a flag: no repeat is negative


def _unique(twins: Any, args: tuple, kwargs: dict) -> ReadBacks:
    tensor = args[0]
    values = _known(twins, tensor)
    if values is None:
        return []
    if tensor.dtype is torch.bool:  # UniqueCub.cu counts the true elements instead of sorting
        return [struct.pack("i", count_nonzero(values))]
    return [struct.pack("q", values.unique().numel())]


def _unique_consecutive(twins: Any, args: tuple, kwargs: dict) -> ReadBacks:
    tensor, _, _, dim = _arguments(args, kwargs, "self", "return_inverse", "return_counts", "dim")
    values = _known(twins, tensor)
    if values is None:
        return []
    unique = values.unique_consecutive(dim=dim)
    return [struct.pack("q", unique.numel()) if dim is None else struct.pack("i", unique.size(dim))]


def _unique_dim(twins: Any, args: tuple, kwargs: dict) -> ReadBacks:
    tensor, dim = _arguments(args, kwargs, "self", "dim")
    values = _known(twins, tensor)
    return [] if values is None else [struct.pack("i", values.unique(dim=dim).size(dim))]


def _bincount(twins: Any, args: tuple, kwargs: dict) -> ReadBacks:
    """The smallest value (not for unsigned types), then the largest (SummaryOps.cu)."""
    values = _known(twins, args[0])
    if values is None or not values.numel():
        return []
    ends = [values.max()] if values.dtype is torch.uint8 else [values.min(), values.max()]
    return [end.numpy().tobytes() for end in ends]


#: Operator name -> the function that computes its read-backs, in their order.
READ_BACKS: dict[str, Callable[[Any, tuple, dict], ReadBacks]] = {
    "nonzero": _nonzero,
    "index": _index,
    "index_put": _index,
    "index_put_": _index,
    "_index_put_impl_": _index,
    "_unsafe_index": _index,
    "_unsafe_index_put": _index,
    "masked_select": _masked_select,
    "masked_scatter_backward": _masked_scatter_backward,
    "repeat_interleave": _repeat_interleave,
    "_unique2": _unique,
    "unique_consecutive": _unique_consecutive,
    "unique_dim": _unique_dim,
    "bincount": _bincount,
}


def last_upload(address: int, size: int) -> bytes | None:
    """The `size` bytes that this thread copied last, if to this address of the device; else None."""
    function = _emulator.peakcast_last_upload
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
    pointer = function(address, size)
    return ctypes.string_at(pointer, size) if pointer else None


@contextmanager
def returning_read_backs(compute: Callable[..., ReadBacks], twins: Any, args: tuple, kwargs: dict) -> Iterator[None]:
    """A context in which the read-backs of one operator in this thread return the computed bytes."""
    items = compute(twins, args, kwargs)
    if not items:
        yield
        return
    data = b"".join(items)  # the data and the sizes must outlive the operator
    sizes = (ctypes.c_size_t * (len(items) + 1))(*map(len, items), 0)
    _emulator.peakcast_answer(data, sizes)
    try:
        yield
    finally:
        _emulator.peakcast_answer(None, None)
