"""Products of matrices and the workspaces of their libraries."""

from __future__ import annotations

import math

import torch

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
    """The weights in full, before them their maxima where those have 8 bits, then a linear layer; a few rows of fp32
    take a kernel that needs neither (bitsandbytes 0.50, backends/cuda/ops.py, _dequant_linear_fallback)."""
    source, _, shape, _, block, _, bias, maxima = [*call.args, None, None][:8]
    sizes = [4 * maxima.numel()] * 2 if maxima is not None else []
    sizes.append(math.prod(shape) * source.element_size())
    if source.dtype == torch.float32 and shape[1] % block == 0:
        sizes = [("unpacked_4bit", (source.numel() // shape[1], size)) for size in sizes]
    whole = [call.allocate(size) for size in sizes]
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
