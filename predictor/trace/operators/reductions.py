"""Allocations of reductions (sums, means, norms, maxima) and of cumulative sums."""

from __future__ import annotations

import math

import torch

from predictor.trace.operators.call import Call, cub_row, nbytes


def reduction(call: Call) -> None:
    """Sums and means: a cast copy of an integer input (ATen/native/ReduceOps.cpp), and partial results (Reduce.cuh)."""
    source, out = call.args[0], call.out[0]
    call.results()
    cast = None
    if not source.dtype.is_floating_point and source.dtype != out.dtype:
        cast = call.allocate(source.numel() * out.element_size())
    partial_sums(call, source, _axes(call, 1), out)
    if cast is not None:
        call.free(cast)


def _axes(call: Call, at: int):
    """The argument at position ``at``, which names the reduced dimensions; None: all."""
    return call.args[at] if len(call.args) > at else None


def variance(call: Call) -> None:
    """Partial means and sums of squares (ATen/native/cuda/ReduceMomentKernel.cu, std_var_kernel_cuda)."""
    call.results()
    partial_sums(call, call.args[0], _axes(call, 1), call.out[0], moments(call.args[0]))


def moments(source: torch.Tensor) -> int:
    """Bytes of a mean, a sum of squares and two counts (ATen/native/SharedReduceOps.h, WelfordData)."""
    return 32 if source.dtype == torch.float64 else 16


def norm(call: Call) -> None:
    """Partial sums in fp32 (ATen/native/cuda/ReduceNormKernel.cu)."""
    call.results()
    partial_sums(call, call.args[0], _axes(call, 2), call.out[0], max(call.args[0].element_size(), 4))


def bound(call: Call) -> None:
    """``amax`` and ``amin``: partial results in the input's dtype (ATen/native/cuda/ReduceMaxValuesKernel.cu)."""
    call.results()
    partial_sums(call, call.args[0], _axes(call, 1), call.out[0], call.args[0].element_size())


def truth(call: Call) -> None:
    """``any`` and ``all``: partial results of one byte (ATen/native/cuda/ReduceLogicKernel.cu)."""
    call.results()
    partial_sums(call, call.args[0], _axes(call, 1), call.out[0], 1)


def position(call: Call) -> None:
    """``argmax`` and ``argmin``: partial values and positions (ATen/native/ReduceOps.cpp, argmax_argmin_impl)."""
    call.results()
    source, copies = _in_order(call)
    partial_sums(call, source, _axes(call, 1), call.out[0], POSITION_BYTES)
    for copy in copies:
        call.free(copy)


def extreme(call: Call) -> None:
    """``max`` and ``min``: partial values, with positions if along a dimension (ATen/native/ReduceAllOps.cpp, max)."""
    axis = _axes(call, 1)
    call.results()
    source, copies = _in_order(call)
    partial_sums(call, source, axis, call.out[0], source.element_size() if axis is None else POSITION_BYTES)
    for copy in copies:
        call.free(copy)


def _in_order(call: Call) -> tuple[torch.Tensor, list[int]]:
    """The input and handles of its copy: a reduction of all elements copies an input that is not contiguous."""
    source = call.args[0]
    if _axes(call, 1) is not None or source.is_contiguous():
        return source, []
    return source.contiguous(), [call.allocate(nbytes(source))]


def is_infinite(call: Call) -> None:
    """A buffer of magnitudes, which are compared with infinity (ATen/native/TensorCompare.cpp, isinf)."""
    magnitudes = call.allocate(nbytes(call.args[0])) if call.args[0].is_floating_point() else None
    call.results()
    if magnitudes is not None:
        call.free(magnitudes)


def log_sum_exp(call: Call) -> None:
    """Maxima, then exponentials of the differences to them, then their sum (ATen/native/ReduceOps.cpp,
    logsumexp_out_impl)."""
    source, out, axes = call.args[0], call.out[0], call.args[1]
    maxima = call.allocate(nbytes(out))
    partial_sums(call, source, axes, out, out.element_size())
    call.temporaries(nbytes(out), out.numel())
    below = call.allocate(source.numel() * out.element_size())
    call.results()
    partial_sums(call, torch.empty_like(source), axes, out)
    call.free(below)
    call.free(maxima)


POSITION_BYTES = 16
"""Bytes of a value and its position (ATen/native/cuda/ReduceArgMaxKernel.cu: a pair with an int64)."""
MAY_BE_SHARED = 1 << 14
"""The smallest number of elements along a row for which thread blocks can share a result, on any GPU. Sums over a whole
tensor are always recorded: the traced shape may be smaller than the predicted one, which has more tokens."""


def partial_sums(call: Call, source: torch.Tensor, axes, out: torch.Tensor, bytes_each: int | None = None) -> None:
    """Records partial results of thread blocks that share an output (Reduce.cuh).

    The dimensions that are fastest in memory decide how blocks divide the input.

    Args:
        axes: dimensions that are reduced; None or empty: all.
        bytes_each: bytes of a partial result; None: the result's element size, at least 4.
    """
    every = axes is None or axes == [] or source.dim() == 0
    axes = set(range(source.dim())) if every else {axis % source.dim() for axis in (
        axes if isinstance(axes, (list, tuple, range)) else [axes])}
    reduced, kept = _iteration(source, axes)
    outputs = math.prod(size for size, *_ in kept)
    inputs = source.numel() // max(outputs, 1)
    along_rows = not kept or bool(reduced) and reduced[0][2] < kept[0][2]
    if not source.numel() or (along_rows and inputs < MAY_BE_SHARED and (kept or bytes_each)):
        return
    dimensions: tuple[int, ...] = (
        outputs, inputs, bytes_each or max(out.element_size(), 4), int(along_rows), int(not kept))
    if not along_rows:
        vector = _vector(source, reduced, kept)
        if vector != math.gcd(outputs, 4):
            dimensions += (kept[0][0] if math.gcd(kept[0][0], 4) == vector else vector,)
    call.temporaries(("reduction_buffer", dimensions), ("reduction_semaphores", dimensions))


def _vector(source: torch.Tensor, reduced, kept) -> int:
    """Number of results that a thread loads at once (Reduce.cuh, get_output_vec_size)."""
    size, _, stride = kept[0]
    return math.gcd(4, size, source.storage_offset(), *(step for *_, step in reduced + kept[1:])) if stride == 1 else 1


def _iteration(source: torch.Tensor, axes: set[int]) -> tuple[list, list]:
    """Reduced and kept dimensions as ``(size, stride of the result, stride of the input)``, the fastest first.

    Dimensions that are contiguous with each other are joined (ATen/TensorIterator.cpp, reorder_dimensions and
    coalesce_dimensions).
    """
    step, kept, reduced = 1, [], []
    for axis in reversed(range(source.dim())):
        size, stride = source.shape[axis], source.stride(axis)
        if size > 1 and axis in axes:
            reduced.append((size, 0, stride))
        elif size > 1:
            kept.append((size, step, stride))
            step *= size
    for last in range(1, len(reduced)):
        for at in range(last, 0, -1):
            before, stride = reduced[at - 1][2], reduced[at][2]
            if before and stride and (before < stride or (before == stride and reduced[at - 1][0] <= reduced[at][0])):
                break
            if before and stride:
                reduced[at - 1:at + 1] = reversed(reduced[at - 1:at + 1])
    return _joined(reduced), _joined(kept)


def _joined(dimensions: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    joined: list[tuple[int, int, int]] = []
    for size, result_stride, input_stride in dimensions:
        if joined:
            last_size, last_result_stride, last_input_stride = joined[-1]
            if (last_size * last_result_stride, last_size * last_input_stride) == (result_stride, input_stride):
                joined[-1] = (last_size * size, last_result_stride, last_input_stride)
                continue
        joined.append((size, result_stride, input_stride))
    return joined


def cumulative(call: Call) -> None:
    """A cast copy of an input of another dtype (ATen/native/ReduceOps.cpp, cumsum), and a contiguous copy if it is not
    contiguous. CUB's scan computes a single row (ATen/native/cuda/ScanUtils.cuh, scan_dim)."""
    source, out = call.args[0], call.out[0]
    copy = (source.numel() * out.element_size(),)
    copies = copy * ((source.dtype != out.dtype) + (not torch.empty_like(source).is_contiguous()
                                                    if source.dtype != out.dtype else not source.is_contiguous()))
    single = source.numel() == source.shape[call.args[1]]
    scans = (cub_row("cub_scan", source.numel(), out.element_size()),) if single else ()
    call.results_and_temporaries(*copies, *scans)
