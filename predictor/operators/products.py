"""Products of matrices and the workspaces of their libraries."""

from __future__ import annotations

import math

from predictor.operators.call import Call


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
