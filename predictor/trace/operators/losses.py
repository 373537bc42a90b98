"""Allocations of element-wise losses: PyTorch computes the loss of every element before it reduces them."""

from __future__ import annotations

import torch

from predictor.trace.operators.call import Call, nbytes
from predictor.trace.operators.reductions import partial_sums

NONE = 0
"""The value of ``reduction="none"`` (ATen/core/Reduction.h)."""


def _reduction(call: Call, at: int) -> int:
    return call.args[at] if len(call.args) > at else 1


def _whole(call: Call) -> torch.Tensor:
    return torch.empty(torch.broadcast_shapes(*(tensor.shape for tensor in call.args[:2])), dtype=call.out[0].dtype,
                       device="meta")


def squared(call: Call) -> None:
    """The result is allocated for all elements and then resized to one number; the elements have a second buffer
    (ATen/native/Loss.cpp, mse_loss_out and smooth_l1_loss_out)."""
    if _reduction(call, 2) == NONE:
        return call.results()
    whole = _whole(call)
    call.results(call.out[0], size=nbytes(whole))
    elements = call.allocate(nbytes(whole))
    partial_sums(call, whole, None, call.out[0])
    call.free(elements)


def huber(call: Call) -> None:
    """A buffer of all elements, then their mean (ATen/native/Loss.cpp, huber_loss)."""
    if _reduction(call, 2) == NONE:
        return call.results()
    whole = _whole(call)
    elements = call.allocate(nbytes(whole))
    call.results()
    partial_sums(call, whole, None, call.out[0])
    call.free(elements)


def cross_entropy(call: Call) -> None:
    """The result is allocated for all elements, and keeps that storage after they are reduced
    (ATen/native/cuda/Loss.cu, binary_cross_entropy_cuda)."""
    if _reduction(call, 3) == NONE:
        return call.results()
    whole = _whole(call)
    call.results(call.out[0], size=nbytes(whole))
    total = call.allocate(call.out[0].element_size())
    partial_sums(call, whole, None, call.out[0])
    call.free(total)
