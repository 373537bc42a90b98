"""Suggests changes that make a job fit the GPU. Each suggestion is predicted before it is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from predictor.answer.predict import predict
from predictor.common.errors import InputError
from predictor.report.units import size_text
from predictor.workload.workload import Workload

NOTHING = "nothing that was tried is enough; fewer tokens, a higher ZeRO stage, offload, or a larger GPU may be"

Change = tuple[str, dict[str, Any]]
"""The description of a change, and the workload keys that it sets."""


def what_fits(workload: Workload) -> list[str]:
    """Descriptions of changes that make the workload fit.

    For each type of change, this is the first variant whose prediction fits. The list is :data:`NOTHING` if none fits.
    """
    suggestions = []
    for variants in _changes_by_type(workload):
        for words, changes in variants:
            try:
                prediction = predict(workload.replace(**changes))
            except InputError:
                continue
            if prediction.verdict == "fits":
                suggestions.append(f"{words} fits ({size_text(prediction.headroom_bytes or 0)} stay free)")
                break
    return suggestions or [NOTHING]


def _changes_by_type(workload: Workload) -> Iterator[Iterable[Change]]:
    """Changes by type, the least intrusive first. None of them changes what the model learns."""
    if not workload.allocator_conf:
        yield [("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", {"allocator_conf": "expandable_segments:True"})]
    if not workload.gradient_checkpointing:
        yield [("gradient_checkpointing", {"gradient_checkpointing": True})]
    yield _smaller_batches(workload)
    eval_batch = workload.per_device_eval_batch_size
    if workload.evaluates and eval_batch is not None:
        sizes = (eval_batch >> halved for halved in range(1, 32))
        yield [(f"per_device_eval_batch_size {size}", {"per_device_eval_batch_size": size}) for size in sizes if size]
    if workload.engine == "ddp":
        yield [("DeepSpeed ZeRO stage 2", {"engine": None, "ddp": None, "zero_stage": 2, "mixed_precision": None,
                                           "dtype": workload.computes_in})]


def _smaller_batches(workload: Workload) -> Iterator[Change]:
    """Half the batch with twice the accumulation steps, again and again."""
    batch, steps = workload.per_device_train_batch_size, workload.gradient_accumulation_steps
    while batch % 2 == 0 and not _sizes_in_config(workload):
        batch, steps = batch // 2, steps * 2
        yield (f"per_device_train_batch_size {batch} with gradient_accumulation_steps {steps}",
               {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps})


def _sizes_in_config(workload: Workload) -> bool:
    """Whether the DeepSpeed config fixes the batch sizes."""
    config: Mapping[str, Any] = workload.deepspeed or {}
    return any(isinstance(config.get(name), int)
               for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
