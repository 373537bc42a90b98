"""What would make a job fit that does not: changes of its workload, each predicted before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from predictor import pipeline
from predictor.errors import InputError
from predictor.report.units import size_text
from predictor.workload import Workload

MOST = 3
NOTHING = "nothing that was tried is enough; fewer tokens, a higher ZeRO stage, offload, or a larger GPU may be"


def what_fits(workload: Workload) -> list[str]:
    """The first changes after which it fits, in words; :data:`NOTHING` if none does."""
    found: list[str] = []
    for words, changes in _changes(workload):
        try:
            prediction = pipeline.predict(workload.replace(**changes))
        except InputError:
            continue
        if prediction.verdict == "fits":
            found.append(f"{words} fits ({size_text(prediction.headroom_bytes or 0)} stay free)")
        if len(found) == MOST:
            break
    return found or [NOTHING]


def _changes(workload: Workload) -> Iterator[tuple[str, dict[str, Any]]]:
    """The least intrusive first: none of them changes what is learned."""
    if not workload.allocator_conf:
        yield ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
               {"allocator_conf": "expandable_segments:True"})
    checkpoints = {"gradient_checkpointing": True}
    if not workload.gradient_checkpointing:
        yield "gradient_checkpointing", checkpoints
    more = {} if workload.gradient_checkpointing else checkpoints
    batch, steps = workload.per_device_train_batch_size, workload.gradient_accumulation_steps
    while batch > 1 and batch % 2 == 0 and not _sizes_in_config(workload):
        batch, steps = batch // 2, steps * 2
        yield (f"per_device_train_batch_size {batch} with gradient_accumulation_steps {steps}"
               + (" and gradient_checkpointing" if more else ""),
               {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps} | more)
    if workload.engine == "ddp":
        yield "DeepSpeed ZeRO stage 2", {"engine": None, "ddp": None, "zero_stage": 2, "mixed_precision": None,
                                         "dtype": workload.computes_in}


def _sizes_in_config(workload: Workload) -> bool:
    """Whether the DeepSpeed config fixes the batch."""
    return any(isinstance((workload.deepspeed or {}).get(name), int)
               for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
