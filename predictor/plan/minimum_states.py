"""The bytes that every GPU holds at least, at any batch size: weights, optimizer states, and gradients at the update.

It needs no formula, so settings that it rules out are neither traced nor composed.
"""

from __future__ import annotations

from predictor.events.model_facts import ModelFacts
from predictor.workload.engines import name_of
from predictor.workload.workload import Workload


def least_bytes(workload: Workload, facts: ModelFacts) -> int:
    """Bytes that are alive at some time in every optimizer step but the first.

    Args:
        workload: only its engine, optimizer, offloading, dtype and degrees matter.
        facts: facts of the model with the workload's recipe; their dtype does not matter.
    """
    engine, gpus = name_of(workload.engine, workload.zero_stage), workload.data_parallel_size
    wide = 4 if workload.dtype == "fp32" else 2
    weights = trained = 0
    for parameter in facts.parameters:
        if not parameter.buffer:
            weights += parameter.numel * (1 if parameter.quantized else wide)
            trained += parameter.numel * parameter.trainable
    if engine in ("zero3", "fsdp1", "fsdp2"):
        weights = 0 if workload.offload in ("parameters", "all") else weights // gpus
    deepspeed = workload.engine == "deepspeed"
    moments = 2 * (4 if deepspeed else wide) if workload.optim.startswith("adamw_torch") else 0
    states = trained * (moments + (4 if deepspeed and wide == 2 else 0))
    if workload.offload in ("optimizer", "all"):
        states = 0
    if engine in ("torch", "ddp"):
        return weights + states + trained * wide  # step() reads gradients
    return weights + (states if engine == "zero0" else states // gpus)
