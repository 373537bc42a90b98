"""CUDA's fused operator for ``torch.nn.functional.rms_norm``, on meta tensors.

On meta tensors PyTorch computes it with several operators (2.11: ATen/native/layer_norm.cpp, rms_norm_symint and
rms_norm_composite). This module defines the fused operator, its gradient, and the tensors that it saves for backward
(FusedRmsNormBackward0).
"""

from __future__ import annotations

import torch

from predictor.trace.operators.call import has

_LIBRARY = torch.library.Library("peakcast", "DEF")
_LIBRARY.define("rms_norm(Tensor source, int rows) -> (Tensor, Tensor)")
_LIBRARY.define("rms_norm_backward(Tensor gradient, Tensor source, Tensor? weight, bool[2] wanted) -> Tensor[]")


def _forward(source, rows):
    """The result, and one fp32 value for each row (ATen/native/cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda)."""
    wide = torch.float64 if source.dtype == torch.float64 else torch.float32
    return (torch.empty_like(source, memory_format=torch.contiguous_format), source.new_empty(rows, dtype=wide))


def _backward(gradient, source, weight, wanted):
    of_source = [torch.empty_like(source, memory_format=torch.contiguous_format)] if wanted[0] else []
    return of_source + ([torch.empty_like(weight)] if wanted[1] else [])


_LIBRARY.impl("rms_norm", _forward, "Meta")
_LIBRARY.impl("rms_norm_backward", _backward, "Meta")


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, source, weight, width):
        out, inverse = torch.ops.peakcast.rms_norm(source, source.numel() // width)
        ctx.save_for_backward(source, weight, inverse)
        return out

    @staticmethod
    def backward(ctx, gradient):
        source, weight, _ = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:2])
        gradients = torch.ops.peakcast.rms_norm_backward(gradient, source, weight, wanted)
        results = [gradients.pop(0) if is_wanted else None for is_wanted in wanted]
        return *results, None


def fused(original):
    """A replacement of ``functional.rms_norm`` that calls the fused operator; ``original`` is called if CUDA would not
    fuse."""

    def rms_norm(input, normalized_shape, weight=None, eps=None):
        if not input.is_meta or not has("rms_norm_fused") or (weight is not None and weight.dtype != input.dtype):
            return original(input, normalized_shape, weight, eps)
        width = 1
        for size in normalized_shape:
            width *= size
        return _RmsNorm.apply(input, weight, width)

    return rms_norm
