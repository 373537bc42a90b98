"""Allocations of group normalisation and batch normalisation."""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format

from predictor.trace.operators.call import Call, nbytes
from predictor.trace.operators.reductions import moments, partial_sums


def group_norm(call: Call) -> None:
    """fp32 scales and shifts of each channel (ATen/native/cuda/group_norm_kernel.cu, GroupNormKernelImplInternal)."""
    _, weight, bias, samples, channels, pixels, *_ = call.args
    each = (4 * samples * channels,) if pixels > 1 and (weight is not None or bias is not None) else ()
    call.results_and_temporaries(*each * 2)


def group_norm_backward(call: Call) -> None:
    """fp32 sums of each channel, and coefficients of each group and channel if the input has a gradient
    (ATen/native/cuda/group_norm_kernel.cu, GroupNormBackwardKernelImplInternal)."""
    *_, weight, samples, channels, pixels, groups, output_mask = call.args
    of_channels, of_groups = 4 * samples * channels, 4 * samples * groups
    call.results()
    sums = [call.allocate(of_channels) for _ in range(2)] if pixels > 1 else []
    if output_mask[0]:
        coefficients = [call.allocate(of_groups), call.allocate(of_groups)]
        if weight is not None and pixels > 1:
            coefficients.insert(0, call.allocate(of_channels))
        call.release(coefficients)
    call.release(sums)


def batch_norm(call: Call) -> None:
    """Partial sums for a channels-last input; an input in neither layout is cast to fp32 for its mean and variance
    (ATen/native/cuda/Normalization.cu, batch_norm_mean_var)."""
    source, training = call.args[0], call.args[5]
    if _by_cudnn(source, call.args[1], call.args[2], training):
        return call.results_and_temporaries(*_in_layout(source, source))
    call.results()
    if not training or (source.is_contiguous() and not _is_last(source)):
        return
    if _is_last(source):
        return _staged(call, source, 4)
    wide = torch.empty_like(source, dtype=torch.float32) if source.element_size() < 4 else source
    cast = call.allocate(nbytes(wide)) if wide is not source else None
    partial_sums(call, wide, [0, *range(2, source.dim())], call.out[1], moments(wide))
    if cast is not None:
        call.free(cast)


def batch_norm_backward(call: Call) -> None:
    """Copies of tensors that have no view as ``[samples, channels, pixels]``; separate sums for channels-last tensors
    (ATen/native/cuda/Normalization.cu, batch_norm_backward_cuda)."""
    gradient, source, weight, *_, training, _, output_mask = call.args
    if training and _by_cudnn(source, weight, weight, training):
        held = [call.allocate(size) for size in (*_in_layout(source, source), *_in_layout(gradient, source))]
        call.results()
        return call.release(held)
    gradients = iter(call.out)
    of_source, *of_weights = (next(gradients) if is_wanted else None for is_wanted in output_mask)
    of_weights = [tensor for tensor in of_weights if tensor is not None]
    last = _is_last(source)
    needed = training or bool(of_weights)
    whole = () if last and _is_last(gradient) else [size for tensor in (source, gradient) for size in _whole(tensor)]
    if not needed:
        return call.results()
    if of_source is not None and not last:
        held = [call.allocate(size) for size in whole]
        call.results()
    else:
        held = [call.allocate(4 * source.shape[1]) for _ in range(2 if call.args[6].numel() else 3)]
        if of_weights:
            call.results(*of_weights)
        if last and _is_last(gradient):
            _staged(call, source, 2)
        else:
            call.temporaries(*whole)
        call.results()
    call.release(held)


def batch_norm_results(args, out):
    """Results of batch normalisation: cuDNN saves no statistics in evaluation (ATen/native/cudnn/BatchNorm.cpp,
    cudnn_batch_norm)."""
    if args[5] or not _by_cudnn(args[0], args[1], args[2], False):
        return out
    return out[0], *(tensor.new_empty(0) for tensor in out[1:])


def _by_cudnn(source: torch.Tensor, weight, bias, training: bool) -> bool:
    """Whether cuDNN computes a batch normalisation (ATen/native/Normalization.cpp, _select_batch_norm_backend)."""
    if weight is None or bias is None or source.dim() < 3 or torch.bfloat16 in (source.dtype, weight.dtype):
        return False
    return (source.dtype != torch.float16 or weight.dtype == torch.float32) and (
        len(source) <= (880801 if training else 65535) and source.numel() < 2**31 - 1)


def _in_layout(tensor: torch.Tensor, other: torch.Tensor) -> list[int]:
    """Bytes of a copy of ``tensor`` in the memory format of ``other``; empty if it has that format already."""
    return [] if tensor.is_contiguous(memory_format=suggest_memory_format(other)) else [nbytes(tensor)]


def _is_last(tensor: torch.Tensor) -> bool:
    """Whether the channels-last kernels run (ATen/native/cuda/Normalization.cu,
    batch_norm_use_channels_last_kernels)."""
    return (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)) or (
        tensor.is_contiguous() and tensor.stride(1) == 1)


def _staged(call: Call, source: torch.Tensor, numbers: int) -> None:
    dimensions = (source.numel() // source.shape[1], source.shape[1])
    call.temporaries(("batch_norm_staging", (*dimensions, numbers)), ("batch_norm_semaphores", dimensions))


def _whole(tensor: torch.Tensor) -> list[int]:
    """Bytes of a copy as ``[samples, channels, pixels]``; empty if the tensor has such a view."""
    try:
        tensor.view(*tensor.shape[:2], -1)
    except RuntimeError:
        return [nbytes(tensor)]
    return []
