"""What CUDA does that meta tensors do not show, by aten operator: the one table of it.

Each entry plays one call: what it allocates before and after its results, and frees, in order. Sizes are
byte counts, or the name of a function in ``predictor.workspaces`` with its dimensions. An operator that is
not in the table allocates its results and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from predictor import flash_attention, liger


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

    def through(self, *sizes) -> None:
        """Temporaries that come together and die at once, last first."""
        for row in reversed([self.allocate(size) for size in sizes]):
            self.free(row)


def results_only(call: Call) -> None:
    """Most operators."""
    call.results()


def matrix_product(call: Call) -> None:
    """The first product of a thread makes its cuBLAS workspace (ATen/cuda/CublasHandlePool.cpp)."""
    call.results()
    call.once("cublas_workspace")


def fused_bias(call: Call) -> None:
    """``addmm`` with a vector goes through cuBLASLt (ATen/native/cuda/Blas.cpp, addmm_out_cuda_impl)."""
    matrix_product(call)
    if call.args[0].dim() == 1:
        call.once("cublaslt_workspace")


def gemm_4bit(call: Call) -> None:
    """The weights in full, before them their maxima where those have 8 bits, then a linear layer (bitsandbytes 0.50,
    backends/cuda/ops.py, _dequant_linear_fallback)."""
    source, _, shape, _, _, _, bias, maxima = [*call.args, None, None][:8]
    whole = [call.allocate(4 * maxima.numel()) for _ in range(2)] if maxima is not None else []
    whole.append(call.allocate(math.prod(shape) * source.element_size()))
    matrix_product(call)
    if bias is not None and source.is_contiguous():
        call.once("cublaslt_workspace")
    for buffer in whole:
        call.free(buffer)


def grouped_product(call: Call) -> None:
    """In bf16 by CUTLASS, on GPUs that have such a kernel (ATen/native/cuda/GroupMM.cu,
    bf16bf16_grouped_gemm_impl_sm90_sm100); else one product after another into the result."""
    left, right, groups = *call.args[:2], call.args[2].numel()
    rows, columns = left.shape[0] * (1 if right.dim() == 3 else groups), right.shape[-1]
    bf16 = call.out[0].dtype == torch.bfloat16
    call.around(*((("grouped_arguments", (groups,)), ("grouped_workspace", (rows, groups, columns))) if bf16 else ()))


def layer_norm(call: Call) -> None:
    """A copy of an input that is not contiguous (ATen/native/cuda/layer_norm_kernel.cu, layer_norm_cuda)."""
    source = call.args[0]
    if source.is_contiguous():
        return call.results()
    copy = call.allocate(source.numel() * source.element_size())
    call.results()
    call.free(copy)


def layer_norm_backward(call: Call) -> None:
    """Copies of an input, then of a gradient, that are not contiguous (the same file, layer_norm_backward_cuda)."""
    gradient, source = call.args[:2]
    copy = None if source.is_contiguous() else call.allocate(source.numel() * source.element_size())
    call.around(*(() if gradient.is_contiguous() else (gradient.numel() * gradient.element_size(),)))
    if copy is not None:
        call.free(copy)


def index(call: Call) -> None:
    """Copies of several indices with unlike strides (ATen/native/TensorAdvancedIndexing.cpp, AdvancedIndex)."""
    indices = [tensor for tensor in call.args[1] if tensor is not None]
    copies = []
    if len(indices) > 1 and all(tensor.dtype == torch.int64 for tensor in indices):
        wide = torch.broadcast_tensors(*indices)
        if len({tensor.stride() for tensor in wide}) > 1:
            copies = [call.allocate(8 * tensor.numel()) for tensor in wide if not tensor.is_contiguous()]
    call.results()
    for copy in reversed(copies):
        call.free(copy)


def reduction(call: Call) -> None:
    """Sums: a cast copy of discrete input (ATen/native/ReduceOps.cpp), partial results (Reduce.cuh)."""
    source, out = call.args[0], call.out[0]
    call.results()
    cast = None
    if not source.dtype.is_floating_point and source.dtype != out.dtype:
        cast = call.allocate(source.numel() * out.element_size())
    _partial_sums(call, source, call.args[1] if len(call.args) > 1 and call.args[1] else range(source.dim()), out)
    if cast is not None:
        call.free(cast)


def _partial_sums(call: Call, source: torch.Tensor, axes, out: torch.Tensor) -> None:
    """Partial results of blocks that share an output (Reduce.cuh); whichever axis is the fastest in memory decides."""
    axes = {axis % source.dim() for axis in axes} if source.dim() else set()
    wide = [axis for axis in range(source.dim()) if source.shape[axis] > 1]
    kept = any(axis not in axes for axis in wide)
    along_rows = not kept or min(wide, key=lambda axis: source.stride(axis) or math.inf) in axes
    dimensions = (out.numel(), source.numel() // max(out.numel(), 1), max(out.element_size(), 4),
                  int(along_rows), int(not kept))
    if source.numel() and not (along_rows and kept):
        call.through(("reduction_buffer", dimensions), ("reduction_semaphores", dimensions))


def dropout(call: Call) -> None:
    """The mask comes first (ATen/native/cuda/Dropout.cu, dropout_cuda)."""
    call.results(call.out[1])
    call.results()


def cumulative(call: Call) -> None:
    """A cast copy of input of another type (ATen/native/ReduceOps.cpp, cumsum); a single row is CUB's scan
    (ATen/native/cuda/ScanUtils.cuh, scan_dim)."""
    source, out = call.args[0], call.out[0]
    copy = (source.numel() * out.element_size(),) if source.dtype != out.dtype else ()
    single = source.numel() == source.shape[call.args[1]]
    descriptor = () if out.element_size() == 8 else (out.element_size(),)
    call.around(*copy, *((("cub_scan", (source.numel(), *descriptor)),) if single else ()))


def softmax_backward(call: Call) -> None:
    """The product of gradient and output (ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out)."""
    gradient, output = call.args[:2]
    call.around(output.numel() * max(gradient.element_size(), output.element_size()))


def safe_softmax(call: Call) -> None:
    """Where whole rows are masked: the mask, one flag a row, a zero (ATen/native/transformers/attention.cpp)."""
    source = call.args[0]
    call.around(source.numel(), source.numel() // source.shape[call.args[1]], source.element_size())


def sort(call: Call) -> None:
    """Of one row: its positions in order, then, if it is long, CUB's buffers (ATen/native/cuda/Sort.cu,
    fillSliceWithIndex and launch_stable_sort_kernel)."""
    source = call.args[0]
    row = (source.numel(),) if source.dim() == 1 and source.dtype == torch.int64 else ()
    call.around(*((8 * row[0], ("row_sort", row)) if row else ()))


def masked_scatter(call: Call) -> None:
    """Prefix sums of the mask, the mask made whole, CUB's scan (ATen/native/cuda/IndexKernel.cpp)."""
    source, mask = call.args[:2]
    items = source.numel()
    call.results()
    whole = () if mask.is_contiguous() and mask.numel() == items else (items,)
    call.through(8 * items, *whole, ("cub_scan", (items,)))


def masked_scatter_backward(call: Call) -> None:
    """``masked_select``, then a copy with the rest filled up (ATen/native/TensorAdvancedIndexing.cpp)."""
    gradient = call.args[0]
    mask = call.allocate(gradient.numel())
    count = call.allocate(4)
    call.through(("cub_count", ()))
    call.through(("cub_select", (gradient.numel(),)))
    call.free(count)
    call.free(mask)
    selected = call.allocate(call.out[0].numel() * call.out[0].element_size())
    call.results()
    call.free(selected)


def nonzero(call: Call) -> None:
    """They are counted, then selected (ATen/native/cuda/Nonzero.cu, nonzero_cuda_out_impl)."""
    items = (call.args[0].numel(),)
    count = call.allocate(4)
    call.through(("cub_sum", items))
    call.around(("cub_select", items))
    call.free(count)


def repeat_interleave(call: Call) -> None:
    """Prefix sums of the repeats, and whether all are positive (ATen/native/Repeat.h, repeat_interleave_common)."""
    repeats = call.args[0]
    sums = call.allocate(8 * repeats.numel())
    call.through(("cub_scan", (repeats.numel(),)))
    if call.kwargs.get("output_size") is None:
        call.through(repeats.numel(), 1)
    call.results()
    call.free(sums)


def index_put(call: Call) -> None:
    """Sums into rows are made in their order: indices are wrapped, made linear and sorted
    (ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel)."""
    target, indices, _, accumulate = call.args[:4]
    call.results()
    if accumulate:
        count = indices[0].numel()
        wrapped, linear = call.allocate(8 * count), call.allocate(8 * count)
        call.free(wrapped)
        call.through(8 * count, 8 * count, 8 * count, ("index_sort", (count, target.shape[0])))
        call.free(linear)


def embedding_backward(call: Call) -> None:
    """A gradient made contiguous, sorting of many tokens, fp32 partial rows (Embedding.cu,
    EmbeddingBackwardKernel.cu)."""
    gradient, indices, vocabulary = call.args[:3]
    tokens, width = indices.numel(), gradient.shape[-1]
    copy = None if gradient.is_contiguous() else call.allocate(gradient.numel() * gradient.element_size())
    each = ("embedding_indices", (tokens,))
    ordered, original = call.allocate(each), call.allocate(each)
    call.through(each, ("embedding_sort", (tokens,)))
    call.results()
    segment, number = ("embedding_segments", (tokens, vocabulary)), ("embedding_number", (tokens,))
    offsets, count = call.allocate(each), call.allocate(number)
    call.through(each, ("embedding_unique", (tokens,)))
    partials, starts = call.allocate(segment), call.allocate(segment)
    call.through(("embedding_scan", (tokens, vocabulary)))
    call.through(number, ("embedding_partials", (tokens, vocabulary, 2)),
                 ("embedding_partials", (tokens, vocabulary, width)))
    for buffer in (starts, partials, count, offsets, original, ordered, *([] if copy is None else [copy])):
        call.free(buffer)


def convolution_backward(call: Call) -> None:
    """A gradient that is not contiguous is copied for the weight's (ATen/native/cudnn/ConvShared.cpp,
    cudnn_convolution_backward_weight), the bias's is its sum (ATen/native/Convolution.cpp, convolution_backward). With
    a group for each channel the weight's comes first (ATen/native/cuda/DepthwiseConv2d.cu), but for cuDNN's fp16."""
    gradient, source = call.args[:2]
    *out, bias = call.out if call.args[-1][2] else (*call.out, None)
    if 1 < call.args[-2] == source.shape[1] and source.dtype != torch.float16:
        out.reverse()
    copy = None if gradient.is_contiguous() else call.allocate(gradient.numel() * gradient.element_size())
    call.results(*out)
    if copy is not None:
        call.free(copy)
    if bias is not None:
        call.results(bias)
        _partial_sums(call, gradient, (0, *range(2, gradient.dim())), bias)


def attention_dimensions(query: torch.Tensor) -> tuple[int, int, int, int]:
    """``(batch, heads, sequence, width)`` of a ``[batch, heads, sequence, width]`` query."""
    return tuple(query.shape)


def cudnn_forward(call: Call) -> None:
    """Seed and offset come before the results, sums of rows only if asked for (attention.cu,
    _scaled_dot_product_cudnn_attention_cuda)."""
    call.results(*(tensor for tensor in call.out if tensor.dim() == 0))
    call.results(call.out[0])
    if call.args[4]:  # compute_log_sumexp
        call.results()


def cudnn_backward(call: Call) -> None:
    """The graph's workspace (ATen/native/cudnn/MHA.cpp, run_cudnn_SDP_bprop)."""
    call.around(("cudnn_backward", attention_dimensions(call.args[1])))


def flash_forward(call: Call) -> None:
    """Partial results when keys are split (flash_api.cpp, set_params_splitkv), before seed and offset."""
    dimensions = attention_dimensions(call.args[0])
    call.results(*call.out[:2])
    partial = [call.allocate((name, dimensions)) for name in ("flash_split_sums", "flash_split_outputs")]
    call.results()
    for buffer in partial:
        call.free(buffer)


def flash_backward(call: Call) -> None:
    """Accumulators, and dK and dV for all heads where heads are grouped (flash_api.cpp, mha_bwd)."""
    query, key = call.args[1:3]
    dimensions = attention_dimensions(query)
    expanded = () if query.shape[1] == key.shape[1] else (query.numel() * query.element_size(),) * 2
    call.around(("flash_softmax_sum", dimensions), ("flash_dq_accumulator", dimensions), *expanded)


def efficient_forward(call: Call) -> None:
    """Sums of rows, rounded up; seed and offset stay on the CPU (attention.cu, _efficient_attention_forward)."""
    out, sums, *_ = call.out
    call.results(out)
    if sums.numel():
        call.results(sums, size=("efficient_rows", attention_dimensions(call.args[0])))


def padded_mask(call: Call) -> None:
    """A mask for memory-efficient attention (ATen/native/transformers/attention.cpp, pad_bias)."""
    mask, padding = call.args[:2]
    if mask.dtype.is_floating_point and mask.dim() == 4 and list(padding) == [0, -mask.shape[-1] % 8]:
        rows = mask.numel() // mask.shape[-1]
        call.results(call.out[0], size=("padded_mask", (rows, mask.shape[-1], mask.element_size())))
    call.results()


def efficient_backward(call: Call) -> None:
    """Row sums, which are an expression of their own in fp32, and the gradient accumulators (attention_backward.cu)."""
    query, dimensions = call.args[1], attention_dimensions(call.args[1])
    *gradients, bias = call.out
    call.results(*gradients)
    if bias.numel():
        length = bias.shape[-1]
        call.results(bias, size=("bias_gradient", (bias.numel() // length, length, bias.element_size())))
    wide = query.element_size() == 4
    terms = [call.allocate(4 * query.numel()), call.allocate(("efficient_delta", dimensions))] if wide else []
    delta = call.allocate(("efficient_delta", dimensions))
    for buffer in reversed(terms):
        call.free(buffer)
    accumulators = call.allocate(("efficient_backward", (*dimensions, 4) if wide else dimensions))
    call.free(delta)
    call.free(accumulators)


TABLE: dict[str, Callable[[Call], None]] = {
    "aten::mm": matrix_product,
    "aten::bmm": matrix_product,
    "aten::baddbmm": matrix_product,
    "aten::addmm": fused_bias,
    "bitsandbytes::gemm_4bit": gemm_4bit,
    "aten::_grouped_mm": grouped_product,
    "aten::native_layer_norm": layer_norm,
    "aten::native_layer_norm_backward": layer_norm_backward,
    "aten::index": index,
    "aten::sum": reduction,
    "aten::native_dropout": dropout,
    "aten::convolution_backward": convolution_backward,
    "aten::_safe_softmax": safe_softmax,
    "aten::_softmax_backward_data": softmax_backward,
    "aten::cumsum": cumulative,
    "aten::sort": sort,
    "aten::masked_scatter": masked_scatter,
    "aten::masked_scatter_backward": masked_scatter_backward,
    "aten::nonzero": nonzero,
    "aten::repeat_interleave": repeat_interleave,
    "aten::_index_put_impl_": index_put,
    "aten::embedding_dense_backward": embedding_backward,
    "aten::_scaled_dot_product_cudnn_attention": cudnn_forward,
    "aten::_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
    "aten::_scaled_dot_product_flash_attention": flash_forward,
    "aten::_scaled_dot_product_flash_attention_backward": flash_backward,
    "aten::constant_pad_nd": padded_mask,
    "aten::_scaled_dot_product_efficient_attention": efficient_forward,
    "aten::_scaled_dot_product_efficient_attention_backward": efficient_backward,
    **liger.OPERATORS,
    **flash_attention.OPERATORS,
}
"""Operator -> how a call plays out on CUDA."""
