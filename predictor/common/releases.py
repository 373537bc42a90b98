"""Releases of packages, and what those of PyTorch do differently."""

from __future__ import annotations

import re

Release = tuple[int, int, int]

TORCH = {
    "cublaslt_workspace_lasts": (2, 9, 0),
    "cudnn_attention_first": (2, 11, 0),
    "cub_aligns_twice": (2, 11, 0),
    "rms_norm_fused": (2, 9, 0),
}
"""Behaviour -> the first release of PyTorch that has it, in the build that PyPI has. Found by running operators on the
emulated H100 under each release.

- ``cublaslt_workspace_lasts``: cuBLASLt's workspace stays allocated, one for each handle and stream
  (ATen/cuda/CublasHandlePool.cpp, getCUDABlasLtWorkspace). Before, each product allocates and frees its own
  (ATen/cuda/CUDABlas.cpp, CublasLtWorkspace).
- ``cudnn_attention_first``: compute capabilities 9.0 and 10.0 prefer cuDNN's attention, others flash attention
  (ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention: with a cuDNN after 9.15). Before, all
  prefer flash attention (2.5.0 alone did not).
- ``cub_aligns_twice``: CUB requests 256 bytes more where it scans and selects. CUDA 13 has this CUB.
- ``rms_norm_fused``: ``torch.nn.functional.rms_norm`` is one operator (ATen/native/layer_norm.cpp).
"""


def release(version: str) -> Release:
    """The three numbers of a version: ``"0.19.8+cu130"`` becomes ``(0, 19, 8)``."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    assert match is not None  # the key's value type checked the version
    return int(match[1]), int(match[2]), int(match[3] or 0)


def torch_has(behaviour: str, version: str) -> bool:
    """Whether a release of PyTorch has a behaviour of :data:`TORCH`."""
    return release(version) >= TORCH[behaviour]
