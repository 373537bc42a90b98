"""Host copies of what is in CUDA tensors on the emulated GPU.

Views, saved tensors and in-place updates of a tensor share its storage; so what
is kept is the bytes of storages. No CUDA tensor or storage is held.
"""

import weakref

import torch

INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

#: A twin larger than this is not kept (bytes); nor are integers beyond the sum.
LARGEST_TWIN_BYTES = 2**29
ALL_INTEGERS_BYTES = 2**30
#: Of floats the newest are kept.
ALL_FLOATS_BYTES = 2**29

_PLAIN = torch.Tensor.__torch_dispatch__


def is_integer(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of the kind whose values are always kept: integers or booleans on the GPU."""
    return tensor.dtype in INTEGERS and _is_plain(tensor)


def is_float(tensor: torch.Tensor) -> bool:
    """Whether it is a floating-point tensor on the GPU."""
    return tensor.dtype.is_floating_point and _is_plain(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.layout is torch.strided and type(tensor).__torch_dispatch__ is _PLAIN


class Twins:
    """What is known of integer and floating-point tensors.

    A storage of integers is recognised by its identity, and its twin dies with
    it. A storage of floats is not even looked at (its reference count steers
    autograd): it is recognised by its address, until `reused` says that a new
    tensor lies there.
    """

    def __init__(self) -> None:
        self._integers: dict[int, tuple[torch.Tensor, weakref.ref]] = {}
        self._floats: dict[int, torch.Tensor] = {}  # oldest first
        self._integer_bytes = self._float_bytes = 0

    def __len__(self) -> int:
        return len(self._integers)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A host tensor with the values of `tensor` (its own view of the twin), or None."""
        if is_integer(tensor):
            storage = tensor.untyped_storage()
            kept = self._integers.get(storage._cdata)
            if kept is None:
                return None
            if kept[0].numel() != storage.nbytes():  # the storage was resized
                self._drop_integers(storage._cdata)
                return None
            return _view(kept[0], tensor)
        if not self._floats or not is_float(tensor):
            return None
        host = self._floats.get(_address(tensor))
        return None if host is None or host.numel() < _extent_bytes(tensor) else _view(host, tensor)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A new twin, all zeros, for the storage of `tensor`: its view for that tensor, or
        None if it would be too large. Of floats, `tensor` must be the whole storage."""
        self.forget(tensor)
        if not is_integer(tensor):
            return self._keep_float(tensor)
        storage = tensor.untyped_storage()
        size, key = storage.nbytes(), storage._cdata
        if size > LARGEST_TWIN_BYTES or self._integer_bytes + size > ALL_INTEGERS_BYTES:
            return None
        host = torch.zeros(size, dtype=torch.uint8)
        self._integers[key] = (host, weakref.ref(storage, lambda _: self._drop_integers(key)))
        self._integer_bytes += size
        return _view(host, tensor)

    def _keep_float(self, tensor: torch.Tensor) -> torch.Tensor | None:
        size = _extent_bytes(tensor)
        if size > ALL_FLOATS_BYTES:
            return None
        while self._float_bytes + size > ALL_FLOATS_BYTES:
            self._drop_floats(next(iter(self._floats)))
        host = self._floats[_address(tensor)] = torch.zeros(size, dtype=torch.uint8)
        self._float_bytes += size
        return _view(host, tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """Values of this tensor's storage are no longer known."""
        if is_integer(tensor):
            self._drop_integers(tensor.untyped_storage()._cdata)
        else:
            self.reused(tensor)

    def reused(self, tensor: torch.Tensor) -> None:
        """A new tensor: if it is of floats, what lay at its address is gone."""
        if self._floats and is_float(tensor):
            self._drop_floats(_address(tensor))

    def _drop_integers(self, key: int) -> None:
        kept = self._integers.pop(key, None)
        self._integer_bytes -= 0 if kept is None else kept[0].numel()

    def _drop_floats(self, address: int) -> None:
        host = self._floats.pop(address, None)
        self._float_bytes -= 0 if host is None else host.numel()


def _address(tensor: torch.Tensor) -> int:
    """Where the storage of a tensor begins."""
    return tensor.data_ptr() - tensor.storage_offset() * tensor.itemsize


def _extent_bytes(tensor: torch.Tensor) -> int:
    """From the beginning of its storage to its last element."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (tensor.storage_offset() + last + 1) * tensor.itemsize


def _view(host: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    view = torch.empty(0, dtype=like.dtype)
    return view.set_(host.untyped_storage(), like.storage_offset(), like.size(), like.stride())
