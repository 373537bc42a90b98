"""The fixed jobs of the check ``emulated``, by group: the grid of arXiv 2512.07853, then one change at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

Grouped = Iterator[tuple[str, dict[str, Any]]]
"""Pairs of group and job. A job has the keys of a workload, and ``events``: when CUDA events complete on the emulated
GPU. Jobs with overlapping communication run with both settings of ``events``. The models ``grouped`` and ``shallow``
are those of ``calibrate/regression/models``."""
Change = dict[str, Any]
"""Keys of a workload that replace those of a base job."""
OVERLAP: Change = {"bf16": {"enabled": True},
           "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500_000_000}}
BASE: Change = {"model": "llava-1.5-7b", "sequence_length": 1024, "per_device_train_batch_size": 4, "zero_stage": 2,
        "data_parallel_size": 8, "rank": 7}
SMALL: Change = {"model": "grouped", "sequence_length": 1100, "per_device_train_batch_size": 3}
LARGE: Change = {"model": "shallow", "sequence_length": 1801, "per_device_train_batch_size": 2}
UNCHECKPOINTED: Change = {"gradient_checkpointing": False}
TWO: Change = {"data_parallel_size": 2, "rank": 0}
EIGHT: Change = {"data_parallel_size": 8, "rank": 7}
VARIANTS: tuple[Change, ...] = (
    {"model": "llava-1.5-13b"}, {"model": "llava-1.5-13b", "gradient_checkpointing": False},
    {"gradient_checkpointing": False}, {"recipe": "full"}, {"recipe": "full", "gradient_checkpointing": False},
    {"recipe": "pretrain", "gradient_checkpointing": False},
    {"gradient_checkpointing_kwargs": {"use_reentrant": True}}, {"padding": "right"},
    {"padding": "right", "gradient_checkpointing": False},
    {"optim": "adamw_torch"}, {"optim": "adamw_torch_forloop"},
    {"gradient_accumulation_steps": 3}, {"sdpa_backend": "flash", "gradient_checkpointing": False},
    {"sdpa_backend": "efficient", "gradient_checkpointing": False},
    {"attn_implementation": "eager", "gradient_checkpointing": False},
    {"sequence_length": 1333, "gradient_checkpointing": False},
    {"per_device_train_batch_size": 1, "gradient_checkpointing": False},
    {"per_device_train_batch_size": 1, "images_per_sample": 3, "sequence_length": 2049,
     "gradient_checkpointing": False},
    {"images_per_sample": 2, "sequence_length": 1501, "gradient_checkpointing": False},
    {"model": "grouped"}, {"model": "grouped", "gradient_checkpointing": False},
    {"model": "grouped", "sdpa_backend": "flash", "gradient_checkpointing": False},
    {"model": "grouped", "sdpa_backend": "flash", "padding": "right", "gradient_checkpointing": False},
)
OVERLAPPING: tuple[Change, ...] = (
    {}, {"contiguous_gradients": False}, {"use_multi_rank_bucket_allreduce": False}, {"reduce_scatter": False},
    {"round_robin_gradients": True}, {"reduce_bucket_size": 5_000_000},
)
OPTIMIZERS = ("sgd", "rmsprop", "adafactor", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "lion_32bit",
              "lion_8bit")


def all_jobs() -> Grouped:
    """Every job, group by group."""
    for group in (paper, variants, overlap, settings, plain, recipes):
        yield from group()


def paper() -> Grouped:
    """The grid of arXiv 2512.07853."""
    engines: tuple[Change, ...] = ({"zero_stage": 2}, {"deepspeed": OVERLAP}, 
                                   {"deepspeed": OVERLAP, "events": "synchronization"})
    for (batch, sequence), recipe, degree in product(((16, 1024), (8, 2048)), ("finetune", "pretrain"), (1, 2, 4, 8)):
        for rank, engine in product(sorted({0, degree - 1}), engines):
            yield "paper", {"model": "llava-1.5-7b", "recipe": recipe, "sequence_length": sequence,
                            "per_device_train_batch_size": batch, "data_parallel_size": degree, "rank": rank, **engine}


def variants() -> Grouped:
    """The base job with one change each."""
    for change in VARIANTS:
        yield "variants", BASE | change


def overlap() -> Grouped:
    """Jobs whose gradient reductions overlap with the backward pass."""
    small = {key: value for key, value in BASE.items() if key != "zero_stage"} | {"model": "grouped"}
    for change, events in product(OVERLAPPING, ("immediate", "synchronization")):
        changed = {**OVERLAP, "zero_optimization": OVERLAP["zero_optimization"] | change}
        yield "overlap", small | {"deepspeed": changed, "gradient_accumulation_steps": 2, "events": events}


def settings() -> Grouped:
    """Jobs with settings of the caching allocator (``PYTORCH_CUDA_ALLOC_CONF``)."""
    for conf in ("expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"):
        yield "settings", BASE | {"model": "grouped", "allocator_conf": conf}


def plain() -> Grouped:
    """Jobs of one GPU under plain PyTorch."""
    base: Change = {"model": "grouped", "sequence_length": 1024, "per_device_train_batch_size": 4}
    changes: tuple[Change, ...] = ({}, {"optim": "adamw_torch"}, {"optim": "adamw_torch_forloop"},
                                   {"gradient_accumulation_steps": 2})
    for change in changes:
        yield "plain PyTorch", base | change


def recipes() -> Grouped:
    """Jobs of adapters, engines and optimizers: each on at least two models, on one GPU and on several."""
    for group in (adapters, zero, ddp, optimizers):
        yield from group()


def adapters() -> Grouped:
    """DoRA, and LoRA with a saved module, under each engine."""
    dora = {"recipe": "lora", "lora": {"r": 64, "use_dora": True, "lora_dropout": 0.05}}
    saved = {"recipe": "lora", "lora": {"r": 8, "modules_to_save": ["lm_head"]}, **UNCHECKPOINTED}
    several: tuple[Change, ...] = ({"zero_stage": 1, **TWO}, {"zero_stage": 2, **EIGHT}, {"zero_stage": 3, **EIGHT})
    for (base, lora), engine in product(((SMALL, dora), (LARGE, saved)), ({}, {"engine": "ddp", **TWO}, *several)):
        yield "adapters", base | lora | engine


def zero() -> Grouped:
    """ZeRO-1 and ZeRO-3, without and with ``overlap_comm``."""
    for stage in (1, 3):
        config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage, "overlap_comm": True}}
        engines = {"zero_stage": stage, **TWO}, {"deepspeed": config, "gradient_accumulation_steps": 2, **EIGHT}
        for engine, base in product(engines, (SMALL, LARGE | UNCHECKPOINTED)):
            yield f"ZeRO-{stage}", base | engine


def ddp() -> Grouped:
    """DDP, without and with ``gradient_as_bucket_view``."""
    views: Change = {"engine": "ddp", "ddp": {"gradient_as_bucket_view": True}, "gradient_accumulation_steps": 2,
                     **EIGHT}
    for base, engine in product((SMALL, LARGE | UNCHECKPOINTED), ({"engine": "ddp", **TWO}, views)):
        yield "DDP", base | engine


def optimizers() -> Grouped:
    """Each optimizer on one GPU, and under ZeRO-2."""
    for optim, base in product(OPTIMIZERS, (SMALL, LARGE | {"zero_stage": 2, **EIGHT})):
        yield "optimizers", base | {"optim": optim, **({"optim_args": "momentum=0.9"} if optim == "sgd" else {})}
    for base in (SMALL, LARGE):
        yield "optimizers", base | {"optim": "adagrad", "max_grad_norm": 0.0}
