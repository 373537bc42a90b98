"""Decides if bitsandbytes multiplies 4-bit weights in its fused kernel, which does not unpack the whole weight.

bitsandbytes 0.50, backends/cuda/ops.py, ``gemm_4bit`` and ``_gemm_4bit_use_custom_cuda``: its authors measured, for
each GPU and layer size, the most rows for which the fused kernel is faster. ``predictor/explore/workspaces.js`` repeats
this table.
"""

from __future__ import annotations

from predictor.common.gpus import Gpu

BLOCK = 64
"""Weights that share a maximum; the fused kernel needs an input width that is a multiple of it."""
TILE = 64
"""Outputs that one thread block computes."""
SMALL_WEIGHTS = 1 << 22
ALWAYS, IN_FP32, UNLESS_TILED = 4, 7, 7
"""Limits of rows for the fused kernel: for any layer; in fp32, which has no tensor cores; where tensor cores lose."""


def is_fused(gpu: Gpu, rows: int, outputs: int, inputs: int, itemsize: int) -> bool:
    """Whether the fused kernel runs.

    Args:
        rows: rows of activations (tokens).
        outputs: output features of the layer.
        inputs: input features of the layer.
        itemsize: bytes of an activation.
    """
    if inputs % BLOCK:
        return False
    if itemsize == 4:
        return rows <= IN_FP32
    most, excludes_6_and_7 = most_rows(gpu, outputs, inputs)
    return rows <= most and not (excludes_6_and_7 and 6 <= rows <= 7)


def most_rows(gpu: Gpu, outputs: int, inputs: int) -> tuple[int, bool]:
    """The most rows of 16-bit activations for the fused kernel, and whether 6 and 7 rows are exceptions.

    ``outputs`` and ``inputs`` are the features of the layer.
    """
    tiles, waves = -(-outputs // TILE), -(-outputs // TILE) / gpu.multiprocessors
    square, tall = inputs == outputs, inputs > outputs
    hopper, ampere = gpu.compute_capability == (9, 0), gpu.compute_capability == (8, 0)
    if gpu.compute_capability[0] == 10:
        return (32 if waves >= 3 else 8 if waves >= 1 and inputs < outputs else ALWAYS), False
    if outputs * inputs < SMALL_WEIGHTS:
        return _of_small_weights(gpu, outputs, inputs, tiles, waves), False
    excludes_6_and_7 = (hopper and tiles >= 36 and (tall and waves < 0.75 or square and 0.6 <= waves < 0.75)
                        or ampere and tiles >= 48 and (tall and waves < 0.75 or square and waves < 0.6))
    table = {(8, 0): _a100, (8, 6): _ampere, (9, 0): _hopper, (12, 0): _blackwell}.get(gpu.compute_capability, _ada)
    return table(gpu, outputs, inputs, tiles, waves), excludes_6_and_7


def _of_small_weights(gpu: Gpu, outputs: int, inputs: int, tiles: int, waves: float) -> int:
    fast_memory, a100 = gpu.compute_capability in ((8, 0), (9, 0)), gpu.compute_capability == (8, 0)
    if 2 * inputs < outputs:
        if fast_memory:
            few, many = (1536, 512) if a100 else (512, 320)
            return few if 3 * tiles < gpu.multiprocessors else many
        return 192 if waves < 1 and tiles * inputs > 320 * gpu.multiprocessors else 320
    if waves <= 0.25:
        if a100:
            return 384 if inputs < outputs else 32 if waves <= 0.125 else 128
        return 32 if inputs < outputs or fast_memory else 23
    return 16 if waves <= 0.5 else ALWAYS


def _a100(gpu: Gpu, outputs: int, inputs: int, tiles: int, waves: float) -> int:
    if waves >= 1:
        return 128 if waves >= 3 else 64 if inputs < outputs else 32
    if inputs >= 3 * outputs and waves > 0.25 or inputs == outputs and tiles >= 48 and waves < 0.6:
        return UNLESS_TILED
    if waves < 0.5 and inputs > outputs and 3 * tiles >= gpu.multiprocessors:
        return UNLESS_TILED
    return 128 if inputs < outputs or waves < 0.5 and inputs == outputs else 16


def _ampere(gpu: Gpu, outputs: int, inputs: int, tiles: int, waves: float) -> int:
    return 128 if waves >= 1 else 64 if waves >= 0.5 else 16


def _hopper(gpu: Gpu, outputs: int, inputs: int, tiles: int, waves: float) -> int:
    if waves >= 1:
        return 64 if waves >= 3 else 48 if waves >= 2 else 32
    return UNLESS_TILED if waves < 0.5 or inputs >= outputs and waves < 0.75 else 16


def _blackwell(gpu: Gpu, outputs: int, inputs: int, tiles: int, waves: float) -> int:
    if waves >= 0.8:
        return 256 if waves >= 3 else 128 if waves >= 2 else 96 if inputs >= outputs else 64
    if waves >= 0.5:
        return 64 if 2 * inputs >= outputs and tiles >= 128 else 8
    return 16 if inputs > 2 * outputs and tiles > 64 else 8


def _ada(gpu: Gpu, outputs: int, inputs: int, tiles: int, waves: float) -> int:
    tall = inputs > 2 * outputs
    if waves >= 2:
        return 256 if waves >= 3 else 128
    if waves >= 0.8:
        if tall or tiles >= 200:
            return 128
        return 64 if inputs < outputs else 128 if gpu.multiprocessors >= 60 else 32
    if waves >= 0.5:
        return 64 if tall else 8 if tiles >= 64 else 32
    if inputs > outputs and tiles <= 48:
        return 12 if inputs >= 3 * outputs else 10
    return 16 if tall or tiles < 48 else 8
