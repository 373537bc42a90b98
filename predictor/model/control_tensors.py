"""Tells tensors whose values can steer control flow (integers and booleans) from floating-point tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def is_discrete(tensor: torch.Tensor) -> bool:
    """Whether a tensor is integer or boolean, so that control flow may depend on its values."""
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
