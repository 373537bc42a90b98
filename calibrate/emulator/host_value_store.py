"""Host copies ("twins") of the values of CUDA tensors on the emulated GPU.

Views, saved tensors and in-place updates of a tensor share its storage. So a
twin holds the bytes of a whole storage. It keeps no CUDA tensor or storage alive.
"""

import weakref

import torch

INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

#: Limits on one twin of integers, and on all together (bytes). Integers beyond a limit get no twin.
LARGEST_TWIN_BYTES = 2**29
ALL_INTEGERS_BYTES = 2**30
#: Limit on all twins of floats together (bytes). The oldest are dropped.
ALL_FLOATS_BYTES = 2**29

_PLAIN = torch.Tensor.__torch_dispatch__


def is_integer(tensor: torch.Tensor) -> bool:
    """Whether it is a plain integer or boolean tensor on the GPU."""
    return tensor.dtype in INTEGERS and _is_plain(tensor)


def is_float(tensor: torch.Tensor) -> bool:
    """Whether it is a plain floating-point tensor on the GPU."""
    return tensor.dtype.is_floating_point and _is_plain(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.layout is torch.strided and type(tensor).__torch_dispatch__ is _PLAIN


class Twins:
    """The known values of integer and floating-point tensors.

    A storage of integers is recognised by its identity, and its twin dies with
    it. A storage of floats must not be touched, because autograd depends on its
    reference count. It is recognised by its address, until `note_new_tensor` reports a
    new tensor at that address.
    """

    def __init__(self) -> None:
        self._integers: dict[int, tuple[torch.Tensor, weakref.ref]] = {}
        self._floats: dict[int, torch.Tensor] = {}  # oldest first
        self._integer_bytes = self._float_bytes = 0

    def __len__(self) -> int:
        return len(self._integers)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of `tensor`, as a tensor on the host, or None if they are unknown.

        The result is a view of the twin, the copy of the values that this store keeps.
        """
        if is_integer(tensor):
            storage = tensor.untyped_storage()
            entry = self._integers.get(storage._cdata)
            if entry is None:
                return None
            if entry[0].numel() != storage.nbytes():  # the storage was resized
                self._drop_integers(storage._cdata)
                return None
            return _view(entry[0], tensor)
        if not self._floats or not is_float(tensor):
            return None
        host = self._floats.get(_address(tensor))
        return None if host is None or host.numel() < _extent_bytes(tensor) else _view(host, tensor)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Makes a new twin, all zeros, for the storage of `tensor`.

        Returns its view for that tensor, or None if the twin would be too large. A tensor of floats must be the whole
        storage.
        """
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
        """Drops the twin of this tensor's storage: its values are no longer known."""
        if is_integer(tensor):
            self._drop_integers(tensor.untyped_storage()._cdata)
        else:
            self.note_new_tensor(tensor)

    def note_new_tensor(self, tensor: torch.Tensor) -> None:
        """Reports a new tensor. If it holds floats, the twin of an earlier tensor at its address is dropped."""
        if self._floats and is_float(tensor):
            self._drop_floats(_address(tensor))

    def _drop_integers(self, key: int) -> None:
        entry = self._integers.pop(key, None)
        self._integer_bytes -= 0 if entry is None else entry[0].numel()

    def _drop_floats(self, address: int) -> None:
        host = self._floats.pop(address, None)
        self._float_bytes -= 0 if host is None else host.numel()


def _address(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.itemsize


def _extent_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the beginning of a tensor's storage to the end of its last element."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (int(tensor.storage_offset()) + last + 1) * tensor.itemsize


def _view(host: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    view = torch.empty(0, dtype=like.dtype)
    return view.set_(host.untyped_storage(), like.storage_offset(), like.size(), like.stride())
