"""Sums, and running sums."""

from __future__ import annotations

import math

import torch

from predictor.operators.call import Call


def reduction(call: Call) -> None:
    """Sums: a cast copy of discrete input (ATen/native/ReduceOps.cpp), partial results (Reduce.cuh)."""
    source, out = call.args[0], call.out[0]
    call.results()
    cast = None
    if not source.dtype.is_floating_point and source.dtype != out.dtype:
        cast = call.allocate(source.numel() * out.element_size())
    partial_sums(call, source, call.args[1] if len(call.args) > 1 and call.args[1] else range(source.dim()), out)
    if cast is not None:
        call.free(cast)


def partial_sums(call: Call, source: torch.Tensor, axes, out: torch.Tensor) -> None:
    """Partial results of blocks that share an output (Reduce.cuh); whichever axis is the fastest in memory decides."""
    axes = {axis % source.dim() for axis in axes} if source.dim() else set()
    wide = [axis for axis in range(source.dim()) if source.shape[axis] > 1]
    kept = any(axis not in axes for axis in wide)
    along_rows = not kept or min(wide, key=lambda axis: source.stride(axis) or math.inf) in axes
    dimensions = (out.numel(), source.numel() // max(out.numel(), 1), max(out.element_size(), 4),
                  int(along_rows), int(not kept))
    if source.numel() and not (along_rows and kept):
        call.through(("reduction_buffer", dimensions), ("reduction_semaphores", dimensions))


def cumulative(call: Call) -> None:
    """A cast copy of input of another type (ATen/native/ReduceOps.cpp, cumsum); a single row is CUB's scan
    (ATen/native/cuda/ScanUtils.cuh, scan_dim)."""
    source, out = call.args[0], call.out[0]
    copy = (source.numel() * out.element_size(),) if source.dtype != out.dtype else ()
    single = source.numel() == source.shape[call.args[1]]
    descriptor = () if out.element_size() == 8 else (out.element_size(),)
    call.around(*copy, *((("cub_scan", (source.numel(), *descriptor)),) if single else ()))
