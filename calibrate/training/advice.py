"""What would make a job fit that does not: changes of its workload, each predicted before it is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from predictor.answer.predict import predict
from predictor.common.errors import InputError
from predictor.report.units import size_text
from predictor.workload.workload import Workload

NOTHING = "nothing that was tried is enough; fewer tokens, a higher ZeRO stage, offload, or a larger GPU may be"

Way = tuple[str, dict[str, Any]]
"""Words, and the keys that they change."""


def what_fits(workload: Workload) -> list[str]:
    """Of each kind of change the first after which it fits, in words; :data:`NOTHING` if none does."""
    found = []
    for ways in _kinds(workload):
        for words, changes in ways:
            try:
                prediction = predict(workload.replace(**changes))
            except InputError:
                continue
            if prediction.verdict == "fits":
                found.append(f"{words} fits ({size_text(prediction.headroom_bytes or 0)} stay free)")
                break
    return found or [NOTHING]


def _kinds(workload: Workload) -> Iterator[Iterable[Way]]:
    """The least intrusive first; none of them changes what is learned."""
    if not workload.allocator_conf:
        yield [("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", {"allocator_conf": "expandable_segments:True"})]
    if not workload.gradient_checkpointing:
        yield [("gradient_checkpointing", {"gradient_checkpointing": True})]
    yield _smaller_batches(workload)
    if workload.evaluates:
        sizes = (workload.per_device_eval_batch_size >> halved for halved in range(1, 32))
        yield [(f"per_device_eval_batch_size {size}", {"per_device_eval_batch_size": size}) for size in sizes if size]
    if workload.engine == "ddp":
        yield [("DeepSpeed ZeRO stage 2", {"engine": None, "ddp": None, "zero_stage": 2, "mixed_precision": None,
                                           "dtype": workload.computes_in})]


def _smaller_batches(workload: Workload) -> Iterator[Way]:
    batch, steps = workload.per_device_train_batch_size, workload.gradient_accumulation_steps
    while batch % 2 == 0 and not _sizes_in_config(workload):
        batch, steps = batch // 2, steps * 2
        yield (f"per_device_train_batch_size {batch} with gradient_accumulation_steps {steps}",
               {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps})


def _sizes_in_config(workload: Workload) -> bool:
    """Whether the DeepSpeed config fixes the batch."""
    return any(isinstance((workload.deepspeed or {}).get(name), int)
               for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
