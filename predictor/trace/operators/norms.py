"""Allocations of layer normalisation, RMS normalisation, dropout and softmax."""

from __future__ import annotations

import torch

from predictor.trace.operators.call import Call, copies, nbytes


def layer_norm(call: Call) -> None:
    """A copy of the input if it is not contiguous (ATen/native/cuda/layer_norm_kernel.cu, layer_norm_cuda)."""
    source = call.args[0]
    if source.is_contiguous():
        return call.results()
    copy = call.allocate(nbytes(source))
    call.results()
    call.free(copy)


def layer_norm_backward(call: Call) -> None:
    """Copies and partial sums as for ``rms_norm_backward``, with a mean and a bias
    (ATen/native/cuda/layer_norm_kernel.cu, layer_norm_backward_cuda)."""
    _backward(call, *call.args[:2])


def rms_norm_backward(call: Call) -> None:
    """Copies of the input, then of the gradient, if they are not contiguous. If there are many short rows, the weight's
    gradient is summed in parts, and the parts are summed again (ATen/native/cuda/layer_norm_kernel.cu,
    _fused_rms_norm_backward_cuda, LaunchGammaBetaBackwardCUDAKernel)."""
    _backward(call, *call.args[:2])


def _backward(call: Call, gradient: torch.Tensor, source: torch.Tensor) -> None:
    copy = None if source.is_contiguous() else call.allocate(nbytes(source))
    of_weights = call.out[1:] if call.args[-1][0] else call.out
    call.results()
    width = max((tensor.numel() for tensor in of_weights), default=1)
    dimensions = (source.numel() // width, width)
    held = [] if gradient.is_contiguous() else [call.allocate(nbytes(gradient))]
    held += [call.allocate(("norm_partials", (*dimensions, tensor.element_size()))) for tensor in of_weights]
    for tensor in of_weights:
        again = call.allocate(("norm_first", (*dimensions, tensor.element_size())))
        call.temporaries(("norm_buffer", dimensions), ("norm_semaphores", dimensions))
        call.free(again)
    call.release(held)
    if copy is not None:
        call.free(copy)


def dropout(call: Call) -> None:
    """The mask is allocated before the result (ATen/native/cuda/Dropout.cu, dropout_cuda)."""
    call.results(call.out[1])
    call.results()


def softmax(call: Call) -> None:
    """After the result, a copy of the input if it is not contiguous (ATen/native/cuda/SoftMax.cu, host_softmax)."""
    source = call.args[0]
    call.results_and_temporaries(*(() if source.is_contiguous() else (nbytes(source),)))


def softmax_backward(call: Call) -> None:
    """The product of gradient and output (ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out), then copies of the
    product and of the output if they are not contiguous (host_softmax_backward)."""
    gradient, output = call.args[:2]
    product = output.numel() * max(gradient.element_size(), output.element_size())
    call.results_and_temporaries(product, *copies(torch.empty_like(gradient), output))


def log_softmax_backward(call: Call) -> None:
    """Copies of gradient and output if they are not contiguous (ATen/native/cuda/SoftMax.cu, host_softmax_backward)."""
    call.results_and_temporaries(*copies(*call.args[:2]))


def safe_softmax(call: Call) -> None:
    """To find rows that are fully masked: a mask, one flag for each row, and a zero
    (ATen/native/transformers/attention.cpp)."""
    source = call.args[0]
    call.results_and_temporaries(source.numel(), source.numel() // source.shape[call.args[1]], source.element_size())
