"""``torch.nn.functional.rms_norm`` as one operator, which only CUDA has.

Meta tensors take it apart (PyTorch 2.11: ATen/native/layer_norm.cpp, rms_norm_symint and rms_norm_composite), so the
operator, its gradient and what it keeps (FusedRmsNormBackward0) are made here.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("peakcast", "DEF")
_LIBRARY.define("rms_norm(Tensor source, int rows) -> (Tensor, Tensor)")
_LIBRARY.define("rms_norm_backward(Tensor gradient, Tensor source, Tensor? weight, bool[2] wanted) -> Tensor[]")


def _forward(source, rows):
    """The result and one fp32 number a row (ATen/native/cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda)."""
    wide = torch.float64 if source.dtype == torch.float64 else torch.float32
    return (torch.empty_like(source, memory_format=torch.contiguous_format), source.new_empty(rows, dtype=wide))


def _backward(gradient, source, weight, wanted):
    made = [torch.empty_like(source, memory_format=torch.contiguous_format)] if wanted[0] else []
    return made + ([torch.empty_like(weight)] if wanted[1] else [])


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
        made = torch.ops.peakcast.rms_norm_backward(gradient, source, weight, wanted)
        results = [made.pop(0) if one else None for one in wanted]
        return *results, None


def fused(original):
    """In place of ``functional.rms_norm``."""

    def rms_norm(input, normalized_shape, weight=None, eps=None):
        if not input.is_meta or (weight is not None and weight.dtype != input.dtype):
            return original(input, normalized_shape, weight, eps)
        width = 1
        for size in normalized_shape:
            width *= size
        return _RmsNorm.apply(input, weight, width)

    return rms_norm
