"""The two modes of a workload, ``training`` and ``inference``, and the keys of each."""

from __future__ import annotations

from predictor.common.value_types import Choice

VALUE_TYPE = Choice(("training", "inference"))
INFERENCE_KEYS = ("max_new_tokens", "cache_implementation", "max_cache_len", "conversation", "gpu_memory_utilization",
                  "block_size")
"""Keys of inference only."""
OF_BOTH = ("mode", "model", "quantization", "sequence_length", "images_per_sample", "image_size", "video_frames",
           "per_device_eval_batch_size", "dtype", "attn_implementation", "sdpa_backend", "gpu", "capacity_bytes",
           "allocator_conf", "profile", "versions", "rank")
"""Keys of both modes; all other keys are of training only."""
ANSWERED_BY_TURNS = ("sequence_length", "images_per_sample", "max_new_tokens")
"""Keys that the turns of a conversation replace."""

ACCEPTED = (("inference", "tensor_parallel_size", 1), ("inference", "data_parallel_size", 1))
"""(mode, key, value) of keys of the other mode that are accepted because they mean the default: one GPU."""

BLOCK_TOKENS = 16
"""vLLM's default ``block_size`` on CUDA."""


def advice_for(mode: str) -> str:
    """Advice for a job that the predictor rejects."""
    return "use peakcast learn" if mode == "training" else "use peakcast measure"


def has(mode: str, key: str) -> bool:
    """True if a mode has this key."""
    return key in OF_BOTH or (key in INFERENCE_KEYS) == (mode == "inference")
