"""Host copies of what is in CUDA tensors on the emulated GPU, kept by storage."""

import weakref

import torch

INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

#: A twin larger than this is not kept (bytes); nor are integers beyond the sum.
LARGEST_TWIN_BYTES = 2**29
ALL_INTEGERS_BYTES = 2**30
#: Of floats (the inputs of a job) the newest are kept.
ALL_FLOATS_BYTES = 2**29


class Unknown(Exception):
    """A value that does not follow from known ones, or is too large to keep."""


class Twins:
    """The bytes of storages whose values are known: views, saved tensors and in-place
    updates of a tensor share its storage and therefore its twin. No CUDA tensor or
    storage is held, and a storage of floats is not even looked at (its reference
    count steers autograd): floats are found by address."""

    def __init__(self) -> None:
        self._bytes: dict[int, tuple[torch.Tensor, weakref.ref]] = {}
        self._float_keys: dict[int, int] = {}  # address of a storage of floats -> its key, oldest first
        self._integer_bytes = self._float_bytes = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A host tensor with the values of `tensor` (its own view of the twin), or None."""
        if tensor.dtype not in INTEGERS:
            key = self._float_keys.get(_address(tensor)) if self._float_keys else None
            return None if key is None else _view(self._bytes[key][0], tensor)
        storage = tensor.untyped_storage()
        kept = self._bytes.get(storage._cdata)
        if kept is None:
            return None
        if kept[0].numel() != storage.nbytes():  # the storage was resized
            self.forget(tensor)
            return None
        return _view(kept[0], tensor)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new twin, all zeros, for the storage of `tensor`: its view for that tensor."""
        self.forget(tensor)
        storage = tensor.untyped_storage()
        size, key = storage.nbytes(), storage._cdata
        if tensor.dtype in INTEGERS:
            if size > LARGEST_TWIN_BYTES or self._integer_bytes + size > ALL_INTEGERS_BYTES:
                raise Unknown
            self._integer_bytes += size
        else:
            if size > ALL_FLOATS_BYTES:
                raise Unknown
            while self._float_bytes + size > ALL_FLOATS_BYTES:
                oldest_address, oldest_key = next(iter(self._float_keys.items()))
                self._drop(oldest_key, oldest_address)
            self._float_bytes += size
            self._float_keys[_address(tensor)] = key
        address = None if tensor.dtype in INTEGERS else _address(tensor)
        host = torch.zeros(size, dtype=torch.uint8)
        self._bytes[key] = (host, weakref.ref(storage, lambda _: self._drop(key, address)))
        return _view(host, tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """Values of this tensor's storage are no longer known."""
        if tensor.dtype in INTEGERS:
            self._drop(tensor.untyped_storage()._cdata, None)
        elif self._float_keys:
            address = _address(tensor)
            self._drop(self._float_keys.get(address), address)

    def _drop(self, key: int | None, address: int | None) -> None:
        kept = self._bytes.pop(key, None)
        if kept is not None:
            if address is None:
                self._integer_bytes -= kept[0].numel()
            else:
                self._float_bytes -= kept[0].numel()
                self._float_keys.pop(address, None)


def _address(tensor: torch.Tensor) -> int:
    """Where the storage of a tensor begins; 0 for one that has no memory of its own."""
    if tensor.layout is not torch.strided or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return 0
    return tensor.data_ptr() - tensor.storage_offset() * tensor.itemsize


def _view(host: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    view = torch.empty(0, dtype=like.dtype)
    return view.set_(host.untyped_storage(), like.storage_offset(), like.size(), like.stride())
