"""The keys of ``fsdp1``: how FSDP1 (``FullyShardedDataParallel``) wraps and shards a model, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.common.value_types import Choice, Flag, NotYetSupported, Table, Whole
from predictor.workload.fsdp_keys import NO_SPLIT_MODULES
from predictor.workload.lora_keys import Names

FULL, GRADIENTS, NOTHING = "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"
HYBRID, HYBRID_GRADIENTS = "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"
RESHARDING = (FULL, HYBRID)
"""Strategies that free the whole parameters after forward (_flat_param.py, RESHARD_AFTER_FORWARD_HANDLE_STRATEGIES)."""
HYBRIDS = (HYBRID, HYBRID_GRADIENTS)
"""Strategies that shard among the ranks of a group and replicate over the groups."""
GPUS_OF_NODE = 8
ALIGNMENT_BYTES = 16
"""Alignment of each parameter in a flat parameter (_flat_param.py, ``_get_aligned_numel``, torch 2.11)."""

_DTYPES = Choice(("bf16", "fp32"), {"fp16": "use bf16 or fp32"})
DEFAULTS: dict[str, Any] = {
    "sharding_strategy": FULL, "use_orig_params": True, "backward_prefetch": "BACKWARD_PRE", "limit_all_gathers": True,
    "cpu_offload": False, "param_dtype": None, "reduce_dtype": None, "buffer_dtype": None, "sync_each_batch": False,
    "sharding_group_size": None, "transformer_layer_cls_to_wrap": (NO_SPLIT_MODULES,)}
VALUE_TYPE = Table({
    "sharding_strategy": Choice((FULL, GRADIENTS, HYBRID, HYBRID_GRADIENTS),
                                {NOTHING: "use engine ddp", "_HYBRID_SHARD_ZERO2": f"use {HYBRID_GRADIENTS}"}),
    "use_orig_params": Flag(), "backward_prefetch": Choice(("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")),
    "limit_all_gathers": Flag(), "cpu_offload": Flag(), "param_dtype": _DTYPES, "reduce_dtype": _DTYPES,
    "buffer_dtype": _DTYPES, "sync_each_batch": Flag(), "sharding_group_size": Whole(1, 65_536),
    "transformer_layer_cls_to_wrap": Names(pattern=False),
    "forward_prefetch": NotYetSupported("units are gathered when forward reaches them; leave it out"),
    "ignored_modules": NotYetSupported("every parameter is sharded; leave it out"),
}, DEFAULTS)


def precision(keys: Mapping[str, Any], mixed_precision: str) -> Mapping[str, str | None]:
    """The dtypes of FSDP's ``MixedPrecision``: ``param``, ``reduce`` and ``buffer``; None for the parameters' own.

    accelerate 1.15 takes all three from its ``mixed_precision`` (utils/dataclasses.py, ``set_mixed_precision``). A
    missing ``reduce_dtype`` is that of the parameters (_flat_param.py, ``_init_param_reduce_dtypes``).
    """
    default = None if mixed_precision == "none" else mixed_precision
    param = keys["param_dtype"] or default
    return {"param": param, "reduce": keys["reduce_dtype"] or param, "buffer": keys["buffer_dtype"] or default}


def sharding_degree(keys: Mapping[str, Any], data_parallel_size: int) -> int:
    """The number of ranks that share a flat parameter."""
    if keys["sharding_strategy"] not in HYBRIDS:
        return data_parallel_size
    return min(keys["sharding_group_size"] or GPUS_OF_NODE, data_parallel_size)


def flattened(numels: Sequence[int], alignment: int, degree: int) -> list[tuple[int, bool]]:
    """The parts of a flat parameter: elements of each, and whether it is padding.

    ``FlatParamHandle._init_flat_param_and_metadata`` (torch 2.11, torch/distributed/fsdp/_flat_param.py): with
    ``use_orig_params`` each parameter begins at a multiple of 16 bytes, and the whole is a multiple of the degree.

    Args:
        numels: elements of each parameter, in the order of ``named_parameters``.
        alignment: elements to which each parameter is aligned; 0 without ``use_orig_params``.
        degree: number of ranks that share it.
    """
    parts: list[tuple[int, bool]] = []
    total = 0

    def pad(multiple: int) -> None:
        nonlocal total
        missing = -total % multiple
        if missing:
            parts.append((missing, True))
            total += missing

    for numel in numels:
        if alignment:
            pad(alignment)
        parts.append((numel, False))
        total += numel
    if alignment:
        pad(degree)
    return parts
