"""Normalisation, dropout and softmax."""

from __future__ import annotations

import torch

from predictor.operators.call import Call, nbytes


def layer_norm(call: Call) -> None:
    """A copy of an input that is not contiguous (ATen/native/cuda/layer_norm_kernel.cu, layer_norm_cuda)."""
    source = call.args[0]
    if source.is_contiguous():
        return call.results()
    copy = call.allocate(nbytes(source))
    call.results()
    call.free(copy)


def layer_norm_backward(call: Call) -> None:
    """Copies of an input, then of a gradient, that are not contiguous (the same file, layer_norm_backward_cuda)."""
    gradient, source = call.args[:2]
    copy = None if source.is_contiguous() else call.allocate(nbytes(source))
    call.around(*(() if gradient.is_contiguous() else (nbytes(gradient),)))
    if copy is not None:
        call.free(copy)


def rms_norm_backward(call: Call) -> None:
    """The same without a mean (the same file, _fused_rms_norm_backward_cuda); many rows of few elements are added up
    in parts, and those by another sum (LayerNormBackwardKernelImplInternal)."""
    _backward(call, *call.args[:2])


def _backward(call: Call, gradient: torch.Tensor, source: torch.Tensor) -> None:
    copy = None if source.is_contiguous() else call.allocate(nbytes(source))
    of_source, *of_weights = call.out if call.args[-1][0] else (None, *call.out)
    if of_source is not None:
        call.results(of_source)
    width = max((tensor.numel() for tensor in of_weights), default=1)
    dimensions = (source.numel() // width, width)
    first = [call.allocate(("norm_first", (*dimensions, tensor.element_size()))) for tensor in of_weights]
    held = [] if gradient.is_contiguous() else [call.allocate(nbytes(gradient))]
    held += [call.allocate(("norm_partials", (*dimensions, tensor.element_size()))) for tensor in of_weights]
    for tensor, before in zip(of_weights, first, strict=True):
        call.results(tensor)
        call.through(("norm_buffer", dimensions), ("norm_semaphores", dimensions))
        call.free(before)
    for buffer in reversed(held):
        call.free(buffer)
    if copy is not None:
        call.free(copy)


def dropout(call: Call) -> None:
    """The mask comes first (ATen/native/cuda/Dropout.cu, dropout_cuda)."""
    call.results(call.out[1])
    call.results()


def softmax_backward(call: Call) -> None:
    """The product of gradient and output (ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out)."""
    gradient, output = call.args[:2]
    call.around(output.numel() * max(gradient.element_size(), output.element_size()))


def safe_softmax(call: Call) -> None:
    """Where whole rows are masked: the mask, one flag a row, a zero (ATen/native/transformers/attention.cpp)."""
    source = call.args[0]
    call.around(source.numel(), source.numel() // source.shape[call.args[1]], source.element_size())
