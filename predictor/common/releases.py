"""Releases of packages, and what those of PyTorch do differently."""

from __future__ import annotations

import re
from functools import cache

Release = tuple[int, int, int]

TORCH = {
    "cublaslt_workspace_lasts": (2, 9, 0),
    "cublaslt_shares_workspace": (2, 12, 0),
    "cudnn_attention_first": (2, 11, 0),
    "checkpoints_on_meta": (2, 5, 0),
    "attention_on_meta": (2, 5, 0),
    "flash_seeds_on_device": (2, 7, 0),
    "rms_norm_fused": (2, 9, 0),
    "efficient_seeds_on_device": (2, 14, 0),
    "efficient_takes_grouped_heads": (2, 14, 0),
    "embedding_sorts_few_bits": (2, 14, 0),
}
"""Behaviour -> the first release of PyTorch that has it, in the build that PyPI has. Found by running operators on the
emulated H100 under each release; 2.13 was not run.

- ``cublaslt_workspace_lasts``: cuBLASLt's workspace stays allocated, one for each handle and stream
  (ATen/cuda/CublasHandlePool.cpp, getCUDABlasLtWorkspace). Before, each product allocates and frees its own
  (ATen/cuda/CUDABlas.cpp, CublasLtWorkspace).
- ``cublaslt_shares_workspace``: cuBLASLt uses cuBLAS's workspace (ATen/cuda/CublasHandlePool.cpp,
  TORCH_CUBLASLT_UNIFIED_WORKSPACE).
- ``cudnn_attention_first``: compute capabilities 9.0 and 10.0 prefer cuDNN's attention, others flash attention
  (ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention: with a cuDNN after 9.15). Before, all
  prefer flash attention (2.5.0 alone did not).
- ``checkpoints_on_meta``: checkpoints need no module ``torch.meta`` (torch/utils/checkpoint.py, _get_device_module).
- ``attention_on_meta``: flash and efficient attention run on meta tensors (torch/_meta_registrations.py).
- ``flash_seeds_on_device``: flash attention keeps seed and offset of its random numbers on the device
  (ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd). Before, they are on the CPU.
- ``rms_norm_fused``: ``torch.nn.functional.rms_norm`` is one operator (ATen/native/layer_norm.cpp).
- ``efficient_seeds_on_device``, ``efficient_takes_grouped_heads``: memory-efficient attention keeps seed and offset on
  the device, and takes query heads that share key heads (ATen/native/transformers/cuda/attention.cu, sdp_utils.cpp).
- ``embedding_sorts_few_bits``: the backward of an embedding sorts by the bits of the highest row only
  (ATen/native/cuda/Embedding.cu).
"""

CUDA = (((2, 11), 1300), ((2, 8), 1208), ((2, 7), 1206), ((2, 5), 1204), ((0, 0), 1201))
"""(first release of PyTorch, CUDA that its build of PyPI was compiled with), newest first: 1208 is 12.8."""


@cache
def release(version: str) -> Release:
    """The three numbers of a version: ``"0.19.8+cu130"`` becomes ``(0, 19, 8)``."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    assert match is not None  # the key's value type checked the version
    return int(match[1]), int(match[2]), int(match[3] or 0)


def torch_has(behaviour: str, version: str) -> bool:
    """Whether a release of PyTorch has a behaviour of :data:`TORCH`."""
    return release(version) >= TORCH[behaviour]


def cuda_of(version: str) -> int:
    """The CUDA release that PyPI's build of a release of PyTorch was compiled with: 1208 is 12.8."""
    return next(cuda for since, cuda in CUDA if release(version) >= since)
