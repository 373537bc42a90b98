"""Device memory outside PyTorch's allocator that is assumed where nothing measured it: CUDA context, libraries, NCCL.

The bounds come from the readings that are named below. Messages of out-of-memory errors, which show such memory too,
judge them (``tests/predictor/profile/test_outside_pytorch.py``): 19 of 21 are inside. They hold for the lazy loading of
kernels, PyTorch's default since CUDA 11.7; before that a context had everything loaded (0.67 against 0.29 GB:
github.com/pytorch/pytorch/pull/86509), which no supported PyTorch does.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.common.gpus import Gpu

KIB, MIB = 1 << 10, 1 << 20
CONTEXT_PER_THREAD = 3 * KIB // 2, 3 * KIB
"""Bounds of the context's bytes for each thread that the GPU can hold at once, for most of it is their stacks. A bare
context on an RTX 3090 took 2.1 KiB a thread (github.com/invoke-ai/InvokeAI/issues/9413), one process with its libraries
2.4 KiB on an L40 and on an A800."""
UNKNOWN_CONTEXT = 0, 1 << 30
"""Bounds of context and libraries on a GPU that is not named."""
LIBRARIES = 0, 128 * MIB
"""Bounds of what cuBLAS, cuDNN and kernels of other packages hold beyond that."""
NVLINK = ((7, 0), (8, 0), (9, 0), (10, 0), (10, 3))
"""Compute capabilities whose GPUs NCCL connects by NVLink, on many channels."""
COMMUNICATOR = 40 * MIB
"""The least of a communicator: two channels, each with a buffer of 10 MiB to send and one to receive
(github.com/NVIDIA/nccl/issues/1685 has that size)."""
COMMUNICATOR_OF_TWO, COMMUNICATOR_OF_MORE = 544 * MIB, 688 * MIB
"""The most of a communicator over NVLink, as measured on A100 (github.com/NVIDIA/nccl/issues/964)."""
COMMUNICATOR_ON_PCIE = 240 * MIB
"""The most of a communicator elsewhere: four channels with six such buffers, for a ring and two trees."""


@dataclass(frozen=True)
class Range:
    """Bounds of a number of bytes."""

    low_bytes: int
    high_bytes: int

    def __add__(self, other: Range) -> Range:
        return Range(self.low_bytes + other.low_bytes, self.high_bytes + other.high_bytes)


NOTHING = Range(0, 0)


@dataclass(frozen=True)
class Outside:
    """Device memory of one process outside PyTorch's allocator.

    Attributes:
        context: of the CUDA context and the libraries.
        communicators: of NCCL.
    """

    context: Range
    communicators: Range = NOTHING

    @property
    def all(self) -> Range:
        """The two together."""
        return self.context + self.communicators


def assumed(gpu: Gpu | None, ranks: int, communicators: int) -> Outside:
    """What is assumed where nothing measured it.

    Args:
        gpu: None if only its memory is known.
        ranks: number of processes that train together, one on each GPU.
        communicators: NCCL communicators that each of them uses; a single rank uses none.
    """
    return Outside(_context(gpu), _communicators(gpu, ranks, communicators) if ranks > 1 else NOTHING)


def _context(gpu: Gpu | None) -> Range:
    """Bounds of the context and the libraries."""
    if gpu is None:
        return Range(*UNKNOWN_CONTEXT)
    threads = gpu.multiprocessors * gpu.threads_per_multiprocessor
    return Range(*(threads * each + libraries for each, libraries in zip(CONTEXT_PER_THREAD, LIBRARIES)))


def _communicators(gpu: Gpu | None, ranks: int, number: int) -> Range:
    """Bounds of a number of communicators among at least two ranks."""
    if gpu and gpu.compute_capability not in NVLINK:
        most = COMMUNICATOR_ON_PCIE
    else:
        most = COMMUNICATOR_OF_TWO if ranks == 2 else COMMUNICATOR_OF_MORE
    return Range(number * COMMUNICATOR, number * most)
