"""One operator call on meta tensors, with methods to record its allocations and frees on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from predictor.common.releases import cuda_of, torch_has
from predictor.events.workspaces import INT64, NEWEST_CUB


class Call(NamedTuple):
    """One operator call on meta tensors.

    A size is a number of bytes, or the name of a function in ``predictor.events.workspaces`` with its dimensions.

    Attributes:
        out: the result tensors.
        allocate: records an allocation of a size; returns a handle.
        free: records the free of a handle.
        results: records the allocation of the given result tensors, or of all that are not allocated yet. ``size``
            replaces the bytes of the meta tensor.
        lasting_workspace: records a library's workspace, by the name of its function, at the first use of the library's
            handle. It is never freed.
    """

    args: tuple
    kwargs: dict[str, Any]
    out: list[torch.Tensor]
    allocate: Callable[[Any], int]
    free: Callable[[int], None]
    results: Callable[..., None]
    lasting_workspace: Callable[[str], None]

    def results_and_temporaries(self, *sizes) -> None:
        """Records the results, then temporaries that are freed in reverse order."""
        self.results()
        self.temporaries(*sizes)

    def release(self, handles: Sequence[int]) -> None:
        """Records the frees of handles, in reverse order."""
        for handle in reversed(handles):
            self.free(handle)

    def temporaries(self, *sizes) -> None:
        """Records temporaries that are allocated in order, and then freed in reverse order."""
        self.release([self.allocate(size) for size in sizes])


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of a contiguous copy of a tensor."""
    return tensor.numel() * tensor.element_size()


def has(behaviour: str) -> bool:
    """Whether the PyTorch that traces has a behaviour of :data:`predictor.common.releases.TORCH`."""
    return torch_has(behaviour, torch.__version__)


def cuda() -> int:
    """The CUDA release that the PyTorch that traces was compiled with: 1208 is 12.8."""
    return cuda_of(torch.__version__)


def cub(name: str, *dimensions: int) -> tuple[str, tuple[int, ...]]:
    """A temporary of CUB, of the release that the PyTorch that traces was compiled with."""
    return name, dimensions if cuda() >= NEWEST_CUB else (*dimensions, cuda())


def cub_row(name: str, items: int, itemsize: int = INT64) -> tuple[str, tuple[int, ...]]:
    """A temporary of CUB for a row, by the bytes of its items. Eight bytes need no dimension of their own."""
    _, dimensions = cub(name, items, itemsize)
    return name, dimensions[:1] if dimensions == (items, INT64) else dimensions


def copies(*tensors: torch.Tensor) -> list[int]:
    """Bytes of contiguous copies of the tensors that are not contiguous."""
    return [nbytes(tensor) for tensor in tensors if not tensor.is_contiguous()]
