"""Notes on events that PyTorch's memory history lacks, each with its position in the history.

The position is the number of allocations and frees so far. The allocator counts them itself, so it is exact and needs
no clock. Noted are emptied caches and synchronisations (an emptied cache that held nothing leaves no trace), streams
that use another stream's block, the model's parameters, and each parameter's gradient when it is complete.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

EMPTY_CACHE, SYNCHRONIZE, RECORD_STREAM = "empty_cache", "synchronize", "record_stream"
PARAMETER, GRADIENT = "parameter", "gradient"
PATCHED = ((torch._C, "_cuda_emptyCache", EMPTY_CACHE), (torch._C, "_accelerator_emptyCache", EMPTY_CACHE),
           (torch._C, "_cuda_synchronize", SYNCHRONIZE), (torch.cuda.Stream, "synchronize", SYNCHRONIZE))
"""Functions that every such call in torch 2.11 goes through (torch/cuda/memory.py, torch/cuda/__init__.py,
torch/cuda/streams.py)."""


class Place(NamedTuple):
    """A position in the history: the numbers of allocations and frees before it."""

    allocated: int
    freed: int


class Note(NamedTuple):
    """One event that the history lacks. Fields that its type does not use are 0 or empty.

    ``allocated`` and ``freed`` are its position, ``stream`` is a stream's handle, ``name`` is a parameter's path.
    """

    event: str
    allocated: int
    freed: int
    address: int = 0
    stream: int = 0
    name: str = ""


def own_name(name: str) -> str:
    """A path without the prefixes of wrappers (DDP, DeepSpeed's engine)."""
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return "" if name == "module" else name


class Notes:
    """Takes notes from ``with`` on, by wrapping PyTorch's functions until the end."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._parameters: dict[str, dict[str, Any]] = {}
        self._seen: set[int] = set()
        self._tensors: set[int] = set()
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Notes:
        self._start = self._count()
        for owner, name, event in PATCHED:
            if hasattr(owner, name):
                self._wrap(owner, name, event)
        self._wrap_record_stream()
        return self

    def __exit__(self, *_) -> None:
        for owner, name, original in reversed(self._undo):
            setattr(owner, name, original)

    def document(self) -> dict[str, Any]:
        """All notes as plain data."""
        return {"notes": [list(note) for note in self._notes], "parameters": list(self._parameters.values())}

    def model(self, root: torch.nn.Module) -> str:
        """Note the tensors of a model that runs for the first time, and watch its gradients.

        Returns the prefix of its parameter paths: empty for the first model, then the class name.
        """
        new_tensors = [(name, tensor) for name, tensor in (*root.named_parameters(), *root.named_buffers())
                 if id(tensor) not in self._tensors]
        if id(root) in self._seen or not new_tensors:
            return ""
        prefix = f"{type(root).__name__}." if self._parameters else ""
        self._seen.add(id(root))
        place = self._place()
        for name, tensor in new_tensors:
            self._tensors.add(id(tensor))
            local = getattr(tensor, "ds_tensor", tensor)  # ZeRO-3 keeps this rank's partition in ds_tensor
            name = prefix + own_name(name)
            if name in self._parameters or not local.is_cuda:
                continue
            self._parameters[name] = {
                "name": name, "shape": list(getattr(tensor, "ds_shape", tensor.shape)),
                "itemsize": local.element_size(),
                "trainable": bool(tensor.requires_grad), "buffer": not isinstance(tensor, torch.nn.Parameter)}
            if local.numel():
                self._notes.append(Note(PARAMETER, *place, local.data_ptr(), name=name))
            if tensor.requires_grad and tensor.is_leaf:
                self._watch(tensor, name)
        return prefix

    def _watch(self, parameter: torch.Tensor, name: str) -> None:
        """Note a complete gradient before any other hook takes it away. This hook holds no reference to it."""
        def complete(tensor: torch.Tensor) -> None:
            if tensor.grad is not None and tensor.grad.is_cuda:
                self._notes.append(Note(GRADIENT, *self._place(), tensor.grad.data_ptr(), name=name))

        handle = parameter.register_post_accumulate_grad_hook(complete)
        hooks: Any = parameter._post_accumulate_grad_hooks  # an OrderedDict
        hooks.move_to_end(handle.id, last=False)

    def _wrap(self, owner: Any, name: str, event: str) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments, **options):
            self._notes.append(Note(event, *self._place()))
            return original(*arguments, **options)

        self._undo.append((owner, name, original))
        setattr(owner, name, wrapped)

    def _wrap_record_stream(self) -> None:
        original = torch.Tensor.record_stream

        def record_stream(tensor, stream):
            if tensor.is_cuda:
                storage = tensor.untyped_storage()
                self._notes.append(Note(RECORD_STREAM, *self._place(), storage.data_ptr(), stream.cuda_stream))
            return original(tensor, stream)

        self._undo.append((torch.Tensor, "record_stream", original))
        torch.Tensor.record_stream = record_stream  # type: ignore[method-assign]  # put back by __exit__

    def _place(self) -> Place:
        return Place(*(now - start for now, start in zip(self._count(), self._start)))

    @staticmethod
    def _count() -> tuple[int, int]:
        """Allocations and frees of blocks so far (``allocation`` in DeviceStats, CUDACachingAllocator.cpp)."""
        counts = torch._C._cuda_memoryStats(torch.cuda.current_device())["allocation"]["all"]
        return counts["allocated"], counts["freed"]
