"""Replaces functions whose path on CUDA differs from their path on meta tensors under a dispatch mode.

The replacements take CUDA's path. They are plain functions, because a function mode
would not be active when an activation checkpoint recomputes.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.nn import functional

from predictor.trace import rms_norm
from predictor.trace.autocast import STAND_IN, cast_as_one_operator
from predictor.trace.host_values import unread
from predictor.trace.operators import batch_norms, convolution
from predictor.trace.operators.call import has

aten = torch.ops.aten


SOFTMAX = aten._safe_softmax if hasattr(aten, "_safe_softmax") else torch.softmax
"""The softmax of the math kernel; ``_safe_softmax`` since PyTorch 2.5."""


def _needs_grad(*tensors) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _as_float(mask, dtype):
    """A boolean mask as a float mask (ATen/native/transformers/attention.cpp, convert_boolean_attn_mask)."""
    zero, minus_infinity = (torch.empty((), dtype=dtype, device="meta") for _ in range(2))
    result = torch.where(mask, zero, minus_infinity)
    del zero, minus_infinity
    return result


def _first(results: list):
    """The first result; the others are freed in order, as the members of a C++ tuple are."""
    first = results.pop(0)
    while results:
        del results[0]
    return first


class Options(NamedTuple):
    """Arguments of ``scaled_dot_product_attention`` that are not tensors, in its order and with its names."""

    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def _cudnn(query, key, value, mask, options: Options):
    """ATen/native/transformers/attention.cpp, case SDPBackend::cudnn_attention."""
    return _first([*aten._scaled_dot_product_cudnn_attention(
        query, key, value, mask, _needs_grad(query, key, value), options.dropout_p, options.is_causal, False,
        scale=options.scale)])


def _flash(query, key, value, mask, options: Options):
    """ATen/native/transformers/attention.cpp, case flash_attention: pads head sizes to multiples of 8."""
    width, scale = query.shape[-1], options.scale
    pad = -width % 8
    if pad:
        scale = 1 / math.sqrt(width) if scale is None else scale
        query, key, value = (functional.pad(tensor, (0, pad)) for tensor in (query, key, value))
    out = _first([*aten._scaled_dot_product_flash_attention(
        query, key, value, options.dropout_p, options.is_causal, False, scale=scale)])
    return out[..., :width] if pad else out


def _efficient(query, key, value, mask, options: Options):
    """ATen/native/transformers/attention.cpp, case efficient_attention: pads rows of a mask to multiples of 8
    (pad_bias)."""
    if mask is not None and mask.dtype == torch.bool:  # converted here, so that no caller keeps a reference
        mask = _as_float(mask, query.dtype)
    if mask is not None and mask.shape[-1] % 8:
        length = mask.shape[-1]
        mask = functional.pad(mask, (0, -length % 8))[..., :length]
    if mask is not None:
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return _first([*aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, _needs_grad(query, key, value), options.dropout_p, options.is_causal,
        scale=options.scale)])


def _math(query, key, value, mask, options: Options):
    """ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math: computes in fp32 and adds the mask in
    place; under a dispatch mode, PyTorch would not add it in place."""
    dtype, scale, dropout = query.dtype, options.scale, options.dropout_p
    wide_query, wide_key, wide_value = query.float(), key.float(), value.float()
    root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scaled = wide_query * root
    if options.is_causal:
        with unread():
            mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device="meta").tril()
            mask = _as_float(mask, scaled.dtype)
    whole_key, whole_value = wide_key, wide_value
    if options.enable_gqa:
        whole_key, whole_value = (tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3)
                                  for tensor in (wide_key, wide_value))
    attention = torch.matmul(scaled, whole_key.transpose(-2, -1) * root)
    if mask is not None:
        attention.add_(mask)
    attention = SOFTMAX(attention, -1)
    if dropout:
        attention = functional.dropout(attention, dropout)
    second = attention.to(dtype)
    first = torch.matmul(attention, whole_value).to(dtype)
    del attention, whole_value, whole_key, scaled, mask, wide_value, wide_key, wide_query  # as C++ leaves its locals
    del second
    return first


KERNELS = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}


def choose(backend: str, mask, grouped: bool, width: int) -> str:
    """The kernel that PyTorch chooses (ATen/native/transformers/cuda/sdp_utils.cpp).

    cuDNN needs head sizes that are multiples of 8, up to 256. Flash attention takes no mask.
    Memory-efficient attention takes no grouped heads before PyTorch 2.14. Only it has a gradient for a mask. No fused
    kernel takes a mask whose rows are not contiguous.

    Args:
        grouped: whether several query heads share a key head.
        width: head size.
    """
    if backend == "cudnn" and mask is not None and mask.requires_grad:
        backend = "efficient"
    if mask is not None and mask.stride(-1) != 1 and mask.shape[-1] != 1:
        backend = "math"
    if backend == "cudnn" and (width % 8 or width > 256):
        backend = "flash"
    if backend == "flash" and mask is not None:
        backend = "efficient"
    takes_grouped = backend != "efficient" or has("efficient_takes_grouped_heads")
    return "math" if grouped and not takes_grouped else backend


def scaled_dot_product_attention(backend: str, original):
    """Calls the fused operator that CUDA would choose; meta tensors would take the math path."""

    def attention(query, key, value, attn_mask=None, *positional, **named):
        options = Options(*positional, **named)
        kernel = choose(backend, attn_mask, options.enable_gqa and query.shape[1] != key.shape[1],
                        query.shape[-1])
        if query.dim() != 4:
            kernel = "math"  # no other kernel takes them (sdp_utils_cpp.h, check_tensor_shapes)
        if query.shape[0] != key.shape[0] or (query.shape[1] != key.shape[1] and not options.enable_gqa):
            kernel = "math"  # no other kernel broadcasts (sdp_utils_cpp.h, check_batch_size_and_num_heads_dense)
        if query.device.type != "meta":
            return original(query, key, value, attn_mask, *positional, **named)
        if kernel != "efficient" and attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = _as_float(attn_mask, query.dtype)
        return KERNELS[kernel](query, key, value, attn_mask, options)

    return attention


def linear(original):
    """Adds a bias in place; ATen/native/Linear.cpp does not under a dispatch mode."""

    def with_bias(input, weight, bias=None):
        if bias is None or input.dim() < 3 or input.is_contiguous():
            return original(input, weight, bias)
        return torch.matmul(input, weight.t()).add_(bias)

    return with_bias


def dropout(original):
    """Calls the fused kernel, whose mask has one byte per element (ATen/native/Dropout.cpp,
    is_fused_kernel_acceptable)."""

    def fused(input, p=0.5, training=True, inplace=False):
        if not training or p == 0 or inplace:
            return original(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    return fused


def softmax(original):
    """Converts fp16 to fp32 inside the kernel, without a copy (ATen/native/SoftMax.cpp, softmax and log_softmax)."""
    operator = getattr(aten, f"_{original.__name__}")

    def fused(input, dim=None, _stacklevel=3, dtype=None):
        if input.is_meta and (input.dtype, dtype) == (torch.float16, torch.float32):
            return operator(input, dim, True)
        return original(input, dim, _stacklevel, dtype)

    return fused


def one_hot(original):
    """Scatters into zeros; ATen/native/Onehot.cpp does not on meta tensors or under a dispatch mode."""

    def scattered(tensor, num_classes=-1):
        if not tensor.is_meta or num_classes < 0:
            return original(tensor, num_classes)
        return tensor.new_zeros(*tensor.shape, num_classes).scatter_(-1, tensor.unsqueeze(-1), 1)

    return scattered


def constant(original):
    """Makes the steps of ``torch.tensor`` visible to a dispatch mode: it reads tensors in a list and copies to a
    device."""

    def values(data):
        if isinstance(data, (list, tuple)):
            return [values(part) for part in data]
        return data.item() if isinstance(data, torch.Tensor) else data

    def from_host(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False):
        tensor = original(values(data) if isinstance(data, (list, tuple)) else data, dtype=dtype)
        tensor = tensor if device is None else tensor.to(device)
        return tensor.requires_grad_() if requires_grad else tensor

    return from_host


def autocast(original):
    """Switches the autocast that stands in for CUDA's; meta has none. transformers 4.57 switches it off for some sums
    (models/llama/modeling_llama.py, LlamaRotaryEmbedding); 5.17 calls ``maybe_autocast``."""

    def on_meta(device_type, *args, **kwargs):
        return original(STAND_IN if device_type == "meta" else device_type, *args, **kwargs)

    return on_meta


def contiguous(args, out):
    """A result that is contiguous on CUDA whatever the input's strides are."""
    return out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)


def log_sigmoid(args, out):
    """CUDA saves no buffer for the backward (ATen/native/cuda/ActivationLogSigmoidKernel.cu)."""
    return out[0], out[1].new_empty(0)


def grouped_product(left, right, *others, **keywords):
    """``_grouped_mm`` of any dtype, as on CUDA (ATen/native/cuda/GroupedBlas.cpp, _grouped_mm_cuda); the meta kernel
    takes only bf16."""
    product = aten._grouped_mm(left.to(torch.bfloat16), right.to(torch.bfloat16), *others, **keywords)
    return torch.empty_like(product, dtype=left.dtype)


def filled(operator):
    """``masked_fill`` whose value may be a CPU tensor, as on CUDA (ATen/native/cuda/Indexing.cu, masked_fill__cuda)."""

    def with_value(tensor, mask, value):
        return operator(tensor, mask, value.to(tensor.device) if isinstance(value, torch.Tensor) else value)

    return with_value


def waited_for(tensor):
    """Returns the same tensor (torch/csrc/distributed/c10d/Functional.cpp, wait_tensor); the meta kernel returns a new
    one."""
    return tensor


def quantized_rows(source: torch.Tensor, threshold: float = 0.0):
    """bitsandbytes' ``int8_vectorwise_quant``, without columns of outliers."""
    rows = source.numel() // source.shape[-1]
    columns = source.new_empty(0, dtype=torch.int64) if threshold else None
    return source.new_empty(source.shape, dtype=torch.int8), source.new_empty(rows, dtype=torch.float32), columns


def mixed_product(source, quantized, weight, row_maxima, column_maxima, columns=None, bias=None):
    """bitsandbytes' ``int8_mixed_scaled_mm`` without columns of outliers."""
    return source.new_empty(*quantized.shape[:-1], len(weight)), source.new_empty(0)


def seeds_on_host(args, out):
    """Flash attention's results with seed and offset on the CPU (``flash_seeds_on_device``)."""
    return out if has("flash_seeds_on_device") else (*out[:6], *(torch.zeros((), dtype=torch.int64),) * 2, *out[8:])


def flash_attention(query, key, value, *_others, **_options):
    """``_scaled_dot_product_flash_attention`` on meta, which PyTorch 2.4 lacks."""
    out = torch.empty_like(query.transpose(1, 2)).transpose(1, 2)
    sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    seed, offset = (query.new_empty((), dtype=torch.int64) for _ in range(2))
    return out, sums, None, None, query.shape[2], key.shape[2], seed, offset, query.new_empty(0)


def efficient_attention(query, _key, value, _bias, compute_log_sumexp, *_others, **_options):
    """``_scaled_dot_product_efficient_attention`` on meta, which PyTorch 2.4 lacks."""
    batch, heads, length, _ = query.shape
    out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    sums = query.new_empty((batch, heads, -(-length // 32) * 32 if compute_log_sumexp else 0), dtype=torch.float32)
    return out, sums, *(torch.zeros((), dtype=torch.int64) for _ in range(2))


REPLACEMENTS = {
    "bitsandbytes::int8_vectorwise_quant": quantized_rows,
    "bitsandbytes::int8_mixed_scaled_mm": mixed_product,
    "aten::_grouped_mm": grouped_product,
    "aten::masked_fill": filled(aten.masked_fill),
    "aten::masked_fill_": filled(aten.masked_fill_),
    "_c10d_functional::wait_tensor": waited_for,
    "_c10d_functional::_wrap_tensor_autograd": AsyncCollectiveTensor,
} | ({} if has("attention_on_meta") else {
    "aten::_scaled_dot_product_flash_attention": flash_attention,
    "aten::_scaled_dot_product_efficient_attention": efficient_attention})
"""Operator -> the function to call on meta tensors instead."""
RESULTS = {
    "aten::convolution": convolution.results,
    "aten::convolution_backward": convolution.backward_results,
    "aten::native_batch_norm": batch_norms.batch_norm_results,
    "aten::roll": contiguous,
    "aten::_scaled_dot_product_flash_attention": seeds_on_host,
    "aten::log_sigmoid_forward": log_sigmoid,
}
"""Operator -> a function of its arguments and its meta results that returns the results as CUDA lays them out."""


@contextmanager
def as_on_cuda(backend: str):
    """Replaces the functions while the block runs; ``backend`` is the preferred attention kernel, a key of
    :data:`KERNELS`."""
    attention = scaled_dot_product_attention(backend, functional.scaled_dot_product_attention)
    with (patch.object(functional, "scaled_dot_product_attention", cast_as_one_operator(attention)),
          patch.object(functional, "linear", cast_as_one_operator(linear(functional.linear))),
          patch.object(functional, "dropout", dropout(functional.dropout)),
          patch.object(functional, "rms_norm", rms_norm.fused(functional.rms_norm)),
          patch.object(functional, "softmax", softmax(functional.softmax)),
          patch.object(functional, "log_softmax", softmax(functional.log_softmax)),
          patch.object(functional, "one_hot", one_hot(functional.one_hot)),
          patch.object(torch, "autocast", autocast(torch.autocast)),
          nullcontext() if has("checkpoints_on_meta") else patch.object(torch, "meta", torch.device("meta"),
                                                                        create=True),
          patch.object(torch, "tensor", constant(torch.tensor))):
        yield
