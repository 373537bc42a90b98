"""Bytes that only CUDA allocates, by kernel: the one table of such formulas.

Every function takes the GPU and the dimensions that ``predictor.operators`` extracts from a call,
as integers or arrays of integers, and gives bytes. Sources name the file and function that allocates
(PyTorch 2.11 unless said otherwise).
"""

from __future__ import annotations

import numpy as np

MIB = 1 << 20


def cublas_workspace(gpu):
    """One per handle and stream, kept for good (ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize)."""
    return 32 * MIB if gpu.compute_capability == (9, 0) else 4096 * 1024 * 2 + 16 * 1024 * 8


FUNCTIONS = {
    function.__name__: function
    for function in (cublas_workspace,)
}
