"""Savings of single changes ("knobs") to one configuration: the predicted peak without a change minus that with it.

:data:`KNOBS` lists the functions that propose changes. Only changes that have a formula are predicted; nothing is
traced for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from predictor.common.errors import InputError
from predictor.formula import learned
from predictor.jobs import dispatch, survival, training_job
from predictor.jobs.training_job import Job
from predictor.plan import launch
from predictor.plan.space import BATCH, STEPS
from predictor.workload.workload import Workload

SMALL_BUCKET = 50_000_000
"""Elements; larger communication buckets are changed to this size."""


@dataclass(frozen=True)
class Knob:
    """A change of one configuration.

    Attributes:
        change: the change in words.
        keys: the workload's changed keys.
        costs: its price in words.
        gives_allocated_bytes, gives_reserved_bytes: bytes by which the peaks fall; None if unknown.
        why_not: the reason why they are unknown; empty otherwise.
    """

    change: str
    keys: Mapping[str, Any]
    costs: str
    gives_allocated_bytes: int | None = None
    gives_reserved_bytes: int | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Peaks:
    """Peaks of the worst rank without a memory limit, in bytes."""

    allocated_bytes: int
    reserved_bytes: int


Changes = Iterator[tuple[str, Mapping[str, Any], str]]


def _precision(w: Workload) -> Changes:
    if not w.gradient_checkpointing:
        yield "gradient_checkpointing off → on", {"gradient_checkpointing": True}, "one more forward of the layers"
    if w.attn_implementation == "eager":
        yield "attn_implementation eager → sdpa", {"attn_implementation": "sdpa"}, "nothing"
    if not w.use_liger_kernel:
        yield "use_liger_kernel off → on", {"use_liger_kernel": True}, "a package; logits are never whole"
    if w.gradient_checkpointing and not w.gradient_checkpointing_kwargs.get("offload"):
        yield ("inputs of checkpoints → host", {"gradient_checkpointing_kwargs":
               dict(w.gradient_checkpointing_kwargs) | {"offload": True}}, "copies over PCIe in each micro-step")


def _batch(w: Workload) -> Changes:
    batch, steps = w.per_device_train_batch_size, w.gradient_accumulation_steps
    if batch > 1 and batch % 2 == 0:
        yield (f"micro batch {batch} → {batch // 2}, accumulation {steps} → {2 * steps}",
               {BATCH: batch // 2, STEPS: 2 * steps}, "twice the micro-steps")


def _optimizer(w: Workload) -> Changes:
    if w.optim.startswith("adamw_torch"):
        yield f"optim {w.optim} → adamw_bnb_8bit", {"optim": "adamw_bnb_8bit"}, "states of 8 bits: other training"
    if w.optim in ("adamw_torch", "adamw_torch_forloop"):
        yield f"optim {w.optim} → adamw_torch_fused", {"optim": "adamw_torch_fused"}, "nothing"
    if w.recipe == "finetune" or w.recipe == "full":
        yield f"recipe {w.recipe} → lora", {"recipe": "lora"}, "adapters train: other training"


def _engine(w: Workload) -> Changes:
    if w.engine in ("ddp", "torch") and w.data_parallel_size == w.world_size > 1:
        yield "engine ddp → ZeRO-2", {"engine": None, "ddp": None, "zero_stage": 2}, "reductions in each micro-step"
    if w.engine != "deepspeed":
        return
    traffic = {1: "an all-reduce less, a partition more", 2: "reductions in each micro-step",
               3: "weights are gathered in each micro-step"}
    if w.deepspeed is None:
        assert w.zero_stage is not None  # without a config the stage chooses DeepSpeed
        for stage in range(w.zero_stage + 1, 4):
            yield f"zero_stage {w.zero_stage} → {stage}", {"zero_stage": stage}, traffic[stage]
        if w.zero_stage and not w.offload:
            yield "optimizer → host", {"offload": "optimizer"}, "AdamW on the CPU, gradients and weights over PCIe"
        if w.zero_stage == 3 and w.offload != "all":
            yield "optimizer and parameters → host", {"offload": "all"}, "weights over PCIe in each micro-step, too"
    yield from _deepspeed(w)


def _deepspeed(w: Workload) -> Changes:
    if w.zero_stage == 0:
        return
    job = dispatch.prepare(w)
    settings, config = job.setup.zero, launch.deepspeed(w, job.formula.facts.hidden_size)
    assert settings is not None and config is not None  # the engine is DeepSpeed
    document = config

    def with_zero(**changes: Any) -> dict[str, Any]:
        return {"zero_stage": None, "offload": None,
                "deepspeed": document | {"zero_optimization": document["zero_optimization"] | changes}}

    for name in ("reduce_bucket_size", "allgather_bucket_size"):
        size = getattr(settings, name)
        if size > SMALL_BUCKET:
            yield f"{name} {size:.3g} → {SMALL_BUCKET:.3g}", with_zero(**{name: SMALL_BUCKET}), "more, smaller messages"
    if settings.overlap_comm:
        yield "overlap_comm on → off", with_zero(overlap_comm=False), "communication waits for computation"
    if not settings.contiguous_gradients:
        yield "contiguous_gradients off → on", with_zero(contiguous_gradients=True), "a copy of each gradient"


def _allocator(w: Workload) -> Changes:
    if "expandable_segments" not in (w.allocator_conf or ""):
        conf = ",".join(filter(None, [w.allocator_conf, "expandable_segments:True"]))
        yield "PYTORCH_CUDA_ALLOC_CONF expandable_segments:True", {"allocator_conf": conf}, "nothing that is known"


def _more(w: Workload) -> Changes:
    if w.engine in ("deepspeed", "fsdp2") and w.zero_stage != 0 and w.rank == "worst":
        size = w.data_parallel_size
        yield f"{size} → {2 * size} GPUs", {"data_parallel_size": 2 * size}, "twice the GPUs"


KNOBS: tuple[Callable[[Workload], Changes], ...] = (_precision, _batch, _optimizer, _engine, _allocator, _more)
"""Functions that propose changes to a workload: each yields the change in words, the changed keys, and the price."""


def turned(workload: Workload) -> tuple[Peaks, tuple[Knob, ...]]:
    """The peaks of a workload, and the knobs that it has: largest savings first, unknown savings last.

    Raises:
        InputError: the workload itself cannot be predicted.
    """
    before = _peaks(dispatch.prepare(workload))
    if learned.is_learned_file(workload.model):
        return before, ()
    knobs = [_turned(workload, before, *change) for propose in KNOBS for change in propose(workload)]
    return before, tuple(sorted(knobs, key=lambda knob: (bool(knob.why_not), -(knob.gives_allocated_bytes or 0))))


def _turned(workload: Workload, before: Peaks, change: str, keys: Mapping[str, Any], costs: str) -> Knob:
    try:
        other = workload.replace(**keys)
        if training_job.needs_trace(dispatch.resolve(other)):
            return Knob(change, keys, costs, why_not="no formula yet: peakcast predict with it traces one")
        after = _peaks(dispatch.prepare(other))
    except InputError as error:
        return Knob(change, keys, costs, why_not=str(error))
    return Knob(change, keys, costs, before.allocated_bytes - after.allocated_bytes,
                before.reserved_bytes - after.reserved_bytes)


def _peaks(job: Job) -> Peaks:
    simulation = survival.simulate_run(job.run(None), job.setup.allocator)
    return Peaks(simulation.peak_allocated_bytes, simulation.peak_reserved_bytes)
