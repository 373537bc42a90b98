"""Metadata buffers of FSDP2's copies: the tables of addresses and blocks that their kernels read.

PyTorch 2.11, aten/src/ATen/native/cuda/TensorShape.cu: ``split_with_sizes_copy_out_cuda_contiguous_no_cast``,
``get_chunk_cat_metadata``, ``pack_vecs``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from predictor.common.gpus import Gpu

INT64 = 8
TILE_BYTES = 2048
"""``TILE_SIZE``: 128 threads with 16 bytes each."""


def split_copy_bytes(chunks: Sequence[int], ranks: int, gpu: Gpu) -> int:
    """Bytes of the metadata of ``split_with_sizes_copy``; ``chunks`` are the bytes of each parameter's shard."""
    most = gpu.multiprocessors * gpu.threads_per_multiprocessor // 128 * 2
    factor = -(-sum(-(-chunk // TILE_BYTES) for chunk in chunks) * ranks // most)
    iterations = -(-factor // min(math.ceil(math.sqrt(factor)), ranks))
    blocks = sum(-(-chunk // (TILE_BYTES * iterations)) for chunk in chunks)
    return INT64 * (4 * len(chunks) + 1 + blocks)


def chunk_cat_bytes(chunks: Sequence[int]) -> int:
    """Bytes of the metadata of ``_chunk_cat``; ``chunks`` are the bytes of each gradient's shard."""
    return INT64 * (6 * len(chunks) + 2 + sum(-(-chunk // TILE_BYTES) for chunk in chunks))
