"""Real values of integer and boolean meta tensors.

Models steer on token ids: they count image tokens, build masks, index. On the meta device those
reads fail. So every integer or boolean storage gets a twin of the same layout in host memory, and
each operator over them runs a second time on the twins. Floats only take room and have none.
"""

from __future__ import annotations

import weakref

import torch
from torch.utils._pytree import tree_leaves, tree_map

from predictor.model.control_tensors import discrete

_FACTORY_KEYWORDS = {"device": torch.device("cpu"), "pin_memory": False}


class Twins:
    """Host storages beside meta storages, keyed weakly: holding one would change what autograd does."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage | None] = {}

    def adopt(self, tensor: torch.Tensor, values: torch.Tensor | None = None) -> None:
        """Give the storage of a meta tensor its values, or zeros: those are made when somebody looks, as nobody does at
        masks of dropout."""
        storage = tensor.untyped_storage()
        key = id(storage)
        self._storages[key] = None
        weakref.finalize(storage, self._storages.pop, key, None)
        if values is not None:
            self.of(tensor).copy_(values)

    def _has(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type != "meta" or id(tensor.untyped_storage()) in self._storages

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor's values on the host, or None where nobody knows them."""
        if tensor.device.type != "meta":
            return tensor
        if not self._has(tensor):
            return None
        storage = tensor.untyped_storage()
        host = self._storages[id(storage)]
        if host is None:
            host = self._storages[id(storage)] = torch.UntypedStorage(storage.nbytes(), device="cpu").fill_(0)
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(host, tensor.storage_offset(), tensor.shape, tensor.stride())

    def follow(self, func, args, kwargs, outputs: list[torch.Tensor]) -> None:
        """After ``func`` ran on meta tensors: make the values of its discrete results true."""
        fresh = [out for out in outputs if discrete(out) and not self._has(out)]
        if not fresh and not (func._schema.is_mutable and any(map(discrete, outputs))):
            return
        results = self.run(func, args, kwargs)
        results = results if results and len(results) == len(outputs) else None
        given = set() if results else {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs))
                                       if isinstance(leaf, torch.Tensor) and discrete(leaf)}
        for index, out in enumerate(outputs):  # a view of what nobody knows, like packed weights, stays unknown
            if any(out is new for new in fresh) and id(out.untyped_storage()) not in given:
                self.adopt(out, results[index] if results else None)

    def like(self, values: torch.Tensor) -> torch.Tensor:
        """A new meta tensor with these values."""
        made = torch.empty_like(values, device="meta")
        self.adopt(made, values)
        return made

    def run(self, func, args, kwargs) -> list[torch.Tensor] | None:
        """Results of an operator on the values of its arguments; None if some are unknown."""
        unknown = False

        def host(value):
            nonlocal unknown
            if isinstance(value, torch.Tensor):
                twin = self.of(value)
                unknown |= twin is None
                return twin
            return value

        host_args, host_kwargs = tree_map(host, (args, kwargs))
        if unknown:
            return None
        host_kwargs |= {key: value for key, value in _FACTORY_KEYWORDS.items() if key in host_kwargs}
        host_args = tree_map(lambda v: torch.device("cpu") if isinstance(v, torch.device) else v, host_args)
        if func is torch.ops.aten.histc.default:  # CUDA counts integers too
            return [func(host_args[0].double(), *host_args[1:], **host_kwargs).to(host_args[0].dtype)]
        result = func(*host_args, **host_kwargs)
        return [result] if isinstance(result, torch.Tensor) else list(result)
