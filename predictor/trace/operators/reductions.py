"""Sums and other reductions, and running sums."""

from __future__ import annotations

import math

import torch

from predictor.trace.operators.call import Call, nbytes


def reduction(call: Call) -> None:
    """Sums and means: a cast copy of discrete input (ATen/native/ReduceOps.cpp), partial results (Reduce.cuh)."""
    source, out = call.args[0], call.out[0]
    call.results()
    cast = None
    if not source.dtype.is_floating_point and source.dtype != out.dtype:
        cast = call.allocate(source.numel() * out.element_size())
    partial_sums(call, source, _axes(call, 1), out)
    if cast is not None:
        call.free(cast)


def _axes(call: Call, at: int):
    """The argument that names the dimensions; None: all."""
    return call.args[at] if len(call.args) > at else None


def variance(call: Call) -> None:
    """Partial means and sums of squares (ATen/native/cuda/ReduceMomentKernel.cu, std_var_kernel_cuda)."""
    call.results()
    partial_sums(call, call.args[0], _axes(call, 1), call.out[0], moments(call.args[0]))


def moments(source: torch.Tensor) -> int:
    """Mean, sum of squares and two counts (ATen/native/SharedReduceOps.h, WelfordData)."""
    return 32 if source.dtype == torch.float64 else 16


def norm(call: Call) -> None:
    """Partial sums in fp32 (ATen/native/cuda/ReduceNormKernel.cu)."""
    call.results()
    partial_sums(call, call.args[0], _axes(call, 2), call.out[0], max(call.args[0].element_size(), 4))


def bound(call: Call) -> None:
    """Partial results of the input's type (ATen/native/cuda/ReduceMaxValuesKernel.cu)."""
    call.results()
    partial_sums(call, call.args[0], _axes(call, 1), call.out[0], call.args[0].element_size())


def truth(call: Call) -> None:
    """Partial results of a byte (ATen/native/cuda/ReduceLogicKernel.cu)."""
    call.results()
    partial_sums(call, call.args[0], _axes(call, 1), call.out[0], 1)


def position(call: Call) -> None:
    """Where the largest is (ATen/native/ReduceOps.cpp, argmax_argmin_impl)."""
    call.results()
    source, copies = _in_order(call)
    partial_sums(call, source, _axes(call, 1), call.out[0], POSITION_BYTES)
    for copy in copies:
        call.free(copy)


def extreme(call: Call) -> None:
    """The largest, along a dimension with its position (ATen/native/ReduceAllOps.cpp, max)."""
    axis = _axes(call, 1)
    call.results()
    source, copies = _in_order(call)
    partial_sums(call, source, axis, call.out[0], source.element_size() if axis is None else POSITION_BYTES)
    for copy in copies:
        call.free(copy)


def _in_order(call: Call) -> tuple[torch.Tensor, list[int]]:
    """Of all elements, a copy if they do not lie in order."""
    source = call.args[0]
    if _axes(call, 1) is not None or source.is_contiguous():
        return source, []
    return source.contiguous(), [call.allocate(nbytes(source))]


def is_infinite(call: Call) -> None:
    """Magnitudes are compared (ATen/native/TensorCompare.cpp, isinf)."""
    magnitudes = call.allocate(nbytes(call.args[0])) if call.args[0].is_floating_point() else None
    call.results()
    if magnitudes is not None:
        call.free(magnitudes)


def log_sum_exp(call: Call) -> None:
    """Maxima, then exponents of what is below them, then the sum (ATen/native/ReduceOps.cpp, logsumexp_out_impl)."""
    source, out, axes = call.args[0], call.out[0], call.args[1]
    maxima = call.allocate(nbytes(out))
    partial_sums(call, source, axes, out, out.element_size())
    call.through(nbytes(out), out.numel())
    below = call.allocate(source.numel() * out.element_size())
    call.results()
    partial_sums(call, torch.empty_like(source), axes, out)
    call.free(below)
    call.free(maxima)


POSITION_BYTES = 16
"""A value and where it is (ATen/native/cuda/ReduceArgMaxKernel.cu: a pair with an int64)."""
MAY_BE_SHARED = 1 << 14
"""Elements along rows from which blocks could share one result: with fewer, none does on any GPU. Sums of everything
are listed whatever there is now: they are of tokens, which become more."""


def partial_sums(call: Call, source: torch.Tensor, axes, out: torch.Tensor, bytes_each: int | None = None) -> None:
    """Partial results of blocks that share an output (Reduce.cuh); the fastest dimensions in memory decide."""
    every = axes is None or axes == [] or source.dim() == 0
    axes = set(range(source.dim())) if every else {axis % source.dim() for axis in (
        axes if isinstance(axes, (list, tuple, range)) else [axes])}
    reduced, kept = _iteration(source, axes)
    outputs = math.prod(size for size, *_ in kept)
    inputs = source.numel() // max(outputs, 1)
    along_rows = not kept or bool(reduced) and reduced[0][2] < kept[0][2]
    if not source.numel() or (along_rows and inputs < MAY_BE_SHARED and (kept or bytes_each)):
        return
    dimensions = (outputs, inputs, bytes_each or max(out.element_size(), 4), int(along_rows), int(not kept))
    if not along_rows:
        vector = _vector(source, reduced, kept)
        if vector != math.gcd(outputs, 4):
            dimensions += (kept[0][0] if math.gcd(kept[0][0], 4) == vector else vector,)
    call.through(("reduction_buffer", dimensions), ("reduction_semaphores", dimensions))


def _vector(source: torch.Tensor, reduced, kept) -> int:
    """How many results a thread loads at once (get_output_vec_size of the same file)."""
    size, _, stride = kept[0]
    return math.gcd(4, size, source.storage_offset(), *(step for *_, step in reduced + kept[1:])) if stride == 1 else 1


def _iteration(source: torch.Tensor, axes: set[int]) -> tuple[list, list]:
    """Reduced and kept dimensions as ``(size, stride of the result, stride of the input)``, the fastest first, joined
    where they lie one after the other (ATen/TensorIterator.cpp, reorder_dimensions and coalesce_dimensions)."""
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
    for size, *strides in dimensions:
        if joined and [joined[-1][0] * stride for stride in joined[-1][1:]] == strides:
            joined[-1] = (joined[-1][0] * size, *joined[-1][1:])
        else:
            joined.append((size, *strides))
    return joined


def cumulative(call: Call) -> None:
    """A cast copy of input of another type (ATen/native/ReduceOps.cpp, cumsum), one in order of what is not; a single
    row is CUB's scan (ATen/native/cuda/ScanUtils.cuh, scan_dim)."""
    source, out = call.args[0], call.out[0]
    copy = (source.numel() * out.element_size(),)
    copies = copy * ((source.dtype != out.dtype) + (not torch.empty_like(source).is_contiguous()
                                                    if source.dtype != out.dtype else not source.is_contiguous()))
    single = source.numel() == source.shape[call.args[1]]
    descriptor = () if out.element_size() == 8 else (out.element_size(),)
    call.around(*copies, *((("cub_scan", (source.numel(), *descriptor)),) if single else ()))
