"""Allocations of matrix products on the GPU, with products of quantized weights and grouped products.

A product allocates its result, the workspace of its library (such as cuBLAS), copies of operands, and unpacked weights.
"""

from __future__ import annotations

import math

import torch

from predictor.trace.operators.call import Call, has, nbytes


def matrix_product(call: Call) -> None:
    """A thread's first product allocates its cuBLAS workspace (ATen/cuda/CublasHandlePool.cpp). An operand is copied if
    neither its rows nor its columns are contiguous, such as the gradient of a sum (ATen/native/cuda/Blas.cpp,
    prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas)."""
    call.results()
    _product(call)


def _product(call: Call, *, by_cublaslt: bool = False) -> None:
    held = [call.allocate(nbytes(tensor)) for tensor in call.args[-2:] if not _has_contiguous_rows_or_columns(tensor)]
    _workspaces(call, by_cublaslt=by_cublaslt)
    for copy in reversed(held):
        call.free(copy)


def _workspaces(call: Call, *, by_cublaslt: bool) -> None:
    """The workspaces of cuBLAS and cuBLASLt. cuBLASLt's handle is cuBLAS's, too."""
    own = by_cublaslt and not has("cublaslt_workspace_lasts")
    workspace = call.allocate(("cublaslt_workspace", ())) if own else None
    call.lasting_workspace("cublas_workspace")
    if workspace is not None:
        call.free(workspace)
    elif by_cublaslt and not has("cublaslt_shares_workspace"):
        call.lasting_workspace("cublaslt_workspace")


def _has_contiguous_rows_or_columns(tensor: torch.Tensor) -> bool:
    rows, columns = tensor.shape[-2:]
    down, right = tensor.stride()[-2:]
    return (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows)) or tensor.is_contiguous()


def fused_bias(call: Call) -> None:
    """``addmm`` of a vector calls cuBLASLt (ATen/native/cuda/Blas.cpp, addmm_out_cuda_impl)."""
    call.results()
    _product(call, by_cublaslt=call.args[0].dim() == 1)


def gemm_4bit(call: Call) -> None:
    """The unpacked weights, before them the maxima if those are quantised to 8 bits, then a linear layer. For few rows,
    a fused kernel needs neither (bitsandbytes 0.50, backends/cuda/ops.py, _dequant_linear_fallback)."""
    source, _, shape, *_, bias, maxima = [*call.args, None, None][:8]
    sizes = [4 * maxima.numel()] * 2 if maxima is not None else []
    sizes.append(math.prod(shape) * source.element_size())
    layer = source.numel() // shape[1], *shape, source.element_size()
    whole = [call.allocate(("unpacked_4bit", (*layer, size))) for size in sizes]
    call.results()
    _workspaces(call, by_cublaslt=bias is not None and source.is_contiguous())
    for buffer in whole:
        call.free(buffer)


def quantize_rows(call: Call) -> None:
    """Maxima of rows and 8-bit numbers. With a threshold, then magnitudes, a mask of the numbers beyond it, its
    reduction to one flag, and a zero for columns of outliers, of which there are none (bitsandbytes 0.50,
    backends/cuda/ops.py, int8_vectorwise_quant)."""
    source, threshold = [*call.args, call.kwargs.get("threshold", 0.0)][:2]
    quantized, maxima = call.out[:2]
    call.results(maxima, quantized)
    if not threshold:
        return
    magnitudes = call.allocate(nbytes(source))
    beyond = call.allocate(source.numel())
    call.free(magnitudes)
    dimensions = (1, source.numel(), 1, 1, 1)
    call.temporaries(1, ("reduction_buffer", dimensions), ("reduction_semaphores", dimensions))
    if maxima.numel() > 1:
        call.temporaries(1)
    call.free(beyond)


def scaled_product(call: Call) -> None:
    """32-bit sums, then a product in fp16, and a second one in the result's dtype if that is not fp16 (bitsandbytes
    0.50, backends/default/ops.py, int8_scaled_mm; backends/cuda/ops.py, int8_mm_dequant)."""
    result = call.out[0]
    sums = call.allocate(4 * result.numel())
    narrow = call.allocate(2 * result.numel()) if result.dtype != torch.float16 else None
    call.results(result)
    if narrow is not None:
        call.free(narrow)
    call.free(sums)


def grouped_product(call: Call) -> None:
    """CUTLASS computes it in bf16, on GPUs that have such a kernel (ATen/native/cuda/GroupMM.cu,
    bf16bf16_grouped_gemm_impl_sm90_sm100); otherwise the products are computed one by one into the result."""
    left, right, groups = *call.args[:2], call.args[2].numel()
    rows, columns = left.shape[0] * (1 if right.dim() == 3 else groups), right.shape[-1]
    bf16 = call.out[0].dtype == torch.bfloat16
    workspaces = ("grouped_arguments", (groups,)), ("grouped_workspace", (rows, groups, columns))
    call.results_and_temporaries(*(workspaces if bf16 else ()))
