"""Which tensors steer control flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def discrete(tensor: torch.Tensor) -> bool:
    """Whether values of this dtype steer control flow."""
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
