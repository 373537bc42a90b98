"""Products of matrices and the workspaces of their libraries."""

from __future__ import annotations

import math

import torch

from predictor.trace.operators.call import Call, nbytes


def matrix_product(call: Call) -> None:
    """The first product of a thread makes its cuBLAS workspace (ATen/cuda/CublasHandlePool.cpp); an operand of which
    neither rows nor columns lie whole in memory, like the gradient of a sum, is copied (ATen/native/cuda/Blas.cpp,
    prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas)."""
    call.results()
    held = [call.allocate(nbytes(tensor)) for tensor in call.args[-2:] if not _lies_whole(tensor)]
    call.once("cublas_workspace")
    for copy in reversed(held):
        call.free(copy)


def _lies_whole(tensor: torch.Tensor) -> bool:
    rows, columns = tensor.shape[-2:]
    down, right = tensor.stride()[-2:]
    return (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows)) or tensor.is_contiguous()


def fused_bias(call: Call) -> None:
    """``addmm`` with a vector goes through cuBLASLt (ATen/native/cuda/Blas.cpp, addmm_out_cuda_impl)."""
    matrix_product(call)
    if call.args[0].dim() == 1:
        call.once("cublaslt_workspace")


def gemm_4bit(call: Call) -> None:
    """The weights in full, before them their maxima where those have 8 bits, then a linear layer; a few rows take a
    kernel that needs neither (bitsandbytes 0.50, backends/cuda/ops.py, _dequant_linear_fallback)."""
    source, _, shape, *_, bias, maxima = [*call.args, None, None][:8]
    sizes = [4 * maxima.numel()] * 2 if maxima is not None else []
    sizes.append(math.prod(shape) * source.element_size())
    layer = source.numel() // shape[1], *shape, source.element_size()
    whole = [call.allocate(("unpacked_4bit", (*layer, size))) for size in sizes]
    call.results()
    call.once("cublas_workspace")
    if bias is not None and source.is_contiguous():
        call.once("cublaslt_workspace")
    for buffer in whole:
        call.free(buffer)


def quantize_rows(call: Call) -> None:
    """Maxima of rows and numbers of 8 bits; with a threshold first which numbers are beyond it, whether any is, and a
    zero for the columns that have some (bitsandbytes 0.50, backends/cuda/ops.py, int8_vectorwise_quant): none has."""
    source, threshold = [*call.args, call.kwargs.get("threshold", 0.0)][:2]
    quantized, maxima = call.out[:2]
    call.results(maxima, quantized)
    if not threshold:
        return
    magnitudes = call.allocate(nbytes(source))
    beyond = call.allocate(source.numel())
    call.free(magnitudes)
    dimensions = (1, source.numel(), 1, 1, 1)
    call.through(1, ("reduction_buffer", dimensions), ("reduction_semaphores", dimensions))
    if maxima.numel() > 1:
        call.through(1)
    call.free(beyond)


def scaled_product(call: Call) -> None:
    """Sums of 32 bits, then a product in fp16, and of that another if it is to be wider (bitsandbytes 0.50,
    backends/default/ops.py, int8_scaled_mm; backends/cuda/ops.py, int8_mm_dequant)."""
    result = call.out[0]
    sums = call.allocate(4 * result.numel())
    narrow = call.allocate(2 * result.numel()) if result.dtype != torch.float16 else None
    call.results(result)
    if narrow is not None:
        call.free(narrow)
    call.free(sums)


def grouped_product(call: Call) -> None:
    """In bf16 by CUTLASS, on GPUs that have such a kernel (ATen/native/cuda/GroupMM.cu,
    bf16bf16_grouped_gemm_impl_sm90_sm100); else one product after another into the result."""
    left, right, groups = *call.args[:2], call.args[2].numel()
    rows, columns = left.shape[0] * (1 if right.dim() == 3 else groups), right.shape[-1]
    bf16 = call.out[0].dtype == torch.bfloat16
    call.around(*((("grouped_arguments", (groups,)), ("grouped_workspace", (rows, groups, columns))) if bf16 else ()))
