"""What a workload is for, ``training`` or ``inference``, and which keys each of them has."""

from __future__ import annotations

from predictor.common.value_types import Choice

KIND = Choice(("training", "inference"))
OF_INFERENCE = ("max_new_tokens", "cache_implementation", "max_cache_len", "conversation", "gpu_memory_utilization",
                "block_size")
"""Keys of inference alone."""
OF_BOTH = ("mode", "model", "quantization", "sequence_length", "images_per_sample", "image_size", "video_frames",
           "per_device_eval_batch_size", "dtype", "attn_implementation", "sdpa_backend", "gpu", "capacity_bytes",
           "allocator_conf", "profile", "versions", "rank")
"""Keys that both have; all others are of training alone."""
ANSWERED_BY_TURNS = ("sequence_length", "images_per_sample", "max_new_tokens")
"""Keys that a conversation says itself."""

SAYS_NOTHING = (("inference", "tensor_parallel_size", 1), ("inference", "data_parallel_size", 1))
"""Mode, key and value of the other mode that describe this one just as well: one GPU."""

BLOCK_TOKENS = 16
"""vLLM's default ``block_size`` on CUDA."""


def unpredicted(mode: str) -> str:
    """What to do about a job that the predictor refuses."""
    return "use peakcast learn" if mode == "training" else "use peakcast measure"


def has(mode: str, key: str) -> bool:
    """Whether a key means something in a mode."""
    return key in OF_BOTH or (key in OF_INFERENCE) == (mode == "inference")
