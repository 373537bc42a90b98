"""What a workload is for, ``training`` or ``inference``, and which keys each of them has."""

from __future__ import annotations

from typing import Any

from predictor.common.suggest import show
from predictor.common.values import Choice

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


def resolve(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Fills what follows from the mode, in place.

    Raises:
        KeyProblem: a key of the other mode, or keys of inference that contradict each other.
    """
    from predictor.workload.key_problem import KeyProblem

    mode = values["mode"]
    for key in given:
        if not has(mode, key) and (mode, key, values[key]) not in SAYS_NOTHING:
            other = "training" if mode == "inference" else "inference"
            raise KeyProblem(key, f"is of {other}, but mode is {mode}: leave it out" + (
                "" if mode == "inference" else ", or add mode inference"))
    if mode == "training":
        return
    values["recipe"], values["gradient_checkpointing"] = "inference", False  # as jobs are named
    batch = values["per_device_eval_batch_size"] or 1
    values["per_device_eval_batch_size"] = values["per_device_train_batch_size"] = batch
    if values["conversation"] is not None:
        for key in ANSWERED_BY_TURNS:
            if key in given:
                raise KeyProblem(key, "is given, but so is conversation, whose turns say that: leave one of them out")
            values[key] = None
        if values["cache_implementation"] != "dynamic":
            raise KeyProblem("cache_implementation", f"is {show(values['cache_implementation'])}, which is not "
                             "predicted for a conversation yet: use dynamic")
    if values["max_cache_len"] is not None and values["cache_implementation"] != "static":
        raise KeyProblem("max_cache_len", "is given, but only a static cache has a length of its own: add "
                                          "cache_implementation static")
    if values["attn_implementation"] == "flash_attention_2":
        raise KeyProblem("attn_implementation", "is flash_attention_2, which is not predicted with mode inference: use "
                                                "sdpa")
    utilization = values["gpu_memory_utilization"]
    if utilization is None:
        if values["block_size"] is not None:
            raise KeyProblem("block_size", "is of paged serving: add gpu_memory_utilization")
        return
    if not 0 < utilization <= 1:
        raise KeyProblem("gpu_memory_utilization", f"is {utilization:g}: it must be above 0 and at most 1")
    values["block_size"] = values["block_size"] or BLOCK_TOKENS
