"""One operator call, as the tables of ``predictor.trace.operators`` play it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Call:
    """One operator call on meta tensors.

    Attributes:
        allocate: takes a size, returns a handle.
        free: takes a handle.
        results: results come to life now: the given ones, or all that have not yet; ``size`` says the
            bytes of one where meta's are no polynomial of the shape.
        once: allocate for good, the first time that this handle of a library is used.
    """

    args: tuple
    kwargs: dict[str, Any]
    out: list[torch.Tensor]
    allocate: Callable[[Any], int]
    free: Callable[[int], None]
    results: Callable[..., None]
    once: Callable[[str], None]

    def around(self, *sizes) -> None:
        """Temporaries that come after the results and die with the call, last first."""
        self.results()
        self.through(*sizes)

    def release(self, held: Sequence[int]) -> None:
        """Free them, the last one first."""
        for handle in reversed(held):
            self.free(handle)

    def through(self, *sizes) -> None:
        """Temporaries that come together and die at once, last first."""
        self.release([self.allocate(size) for size in sizes])


def results_only(call: Call) -> None:
    """Most operators."""
    call.results()


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of a copy that is contiguous."""
    return tensor.numel() * tensor.element_size()


def copies(*tensors: torch.Tensor) -> list[int]:
    """Bytes of contiguous copies of those that are not."""
    return [nbytes(tensor) for tensor in tensors if not tensor.is_contiguous()]
