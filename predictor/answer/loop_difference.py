"""The memory that a training loop of the user's own takes beyond the reference loop, without another trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from predictor.answer.prediction import Caution
from predictor.engine.zero2_backward import backward_end
from predictor.events.events import MOMENTS, EventList, EventType, Moment
from predictor.events.micro_step import MicroStep
from predictor.formula.formula import Formula
from predictor.jobs.learned_job import LearnedJob
from predictor.jobs.survival import FITS
from predictor.jobs.training_job import Job
from predictor.workload.compared import goes_with

KEEPING = {"next_forward": "outputs = model(…); loss = outputs.loss; loss.backward() in a plain script",
           "backward": "outputs = model(…); loss = outputs.loss; loss.backward() in a function"}
"""Value of the key ``keep_outputs`` -> a loop that keeps its outputs so long. The usual one comes first."""
NOTABLE = 0.1
"""A loop is told beside another one if it takes more by this share."""
CAST = "aten::_to_copy"
_BACKWARD = MOMENTS.index(Moment.BACKWARD)


def other_loops(job: Job, free_bytes: int, verdict: str = FITS) -> Iterator[Caution]:
    """Loops with which the job would no longer surely fit, or surely not fit, and the bytes that each reserves more.

    Each is simulated: idle memory may take what a loop keeps, and what a loop keeps may split idle memory. First a loop
    that keeps the model's output; then, if it takes notably more, one that keeps gradients, too. Nothing if the loop
    is known.

    Args:
        job: surely fits, or may fit; its workload has a capacity.
        free_bytes: bytes that may be reserved more while it does. Nothing is simulated if the tensors of no other loop
            take more than this.
        verdict: its verdict.
    """
    if not is_assumed(job) or _most(job) <= free_bytes:
        return
    keep, outputs = _first_that_dies(job, free_bytes, verdict, "after_step")
    if keep:
        yield Caution(f"the model's output is assumed to be freed before backward; {KEEPING[keep]} keeps it "
                      f"(keep_outputs {keep})", outputs, free_bytes,
                      f"the loop keeps the model's output (keep_outputs {keep})", verdict)
    if job.workload.engine == "deepspeed":  # which frees gradients itself
        return
    keep, both = _first_that_dies(job, free_bytes, verdict, "before_backward")
    if keep and both > outputs * (1 + NOTABLE):
        keys = f"keep_outputs {keep}, zero_grad before_backward"
        yield Caution("gradients are assumed to be freed right after the optimizer step; optimizer.zero_grad() before "
                      f"loss.backward() keeps them, and {KEEPING[keep]} keeps the output ({keys})", both, free_bytes,
                      f"the loop keeps gradients and the model's output ({keys})", verdict)


def loops(job: Job) -> tuple[Mapping[str, str], ...]:
    """The keys of each of the loops of :func:`other_loops`, those that take the most first; empty if it is known."""
    if not is_assumed(job):
        return ()
    zeroed = ("after_step",) if job.workload.engine == "deepspeed" else ("before_backward", "after_step")
    return tuple({"keep_outputs": keep, "zero_grad": zero_grad} for zero_grad in zeroed for keep in KEEPING)


def _first_that_dies(job: Job, free_bytes: int, verdict: str, zero_grad: str) -> tuple[str, int]:
    """The first ``keep_outputs`` with which the verdict is a worse one, and the bytes that it reserves more.

    Without one an empty name and 0.
    """
    capacity = job.workload.capacity
    assert capacity is not None  # only a job with a capacity fits
    for keep in KEEPING:
        other = with_loop(job, keep_outputs=keep, zero_grad=zero_grad)
        outcome = None if other is None else other.judge()
        if outcome is not None and outcome.verdict not in (FITS, verdict):
            reserved = outcome.reserved.bytes if outcome.reserved.high is None else outcome.reserved.high
            beyond = job.margin.capacity(reserved) - capacity if verdict == FITS else reserved - (
                job.margin.limits(capacity)[1] or reserved)
            return keep, free_bytes + beyond
    return "", 0


def with_loop(job: Job, *, keep_outputs: str = "next_forward", zero_grad: str = "after_step") -> Job | None:
    """The job with another loop than the assumed one; None if :func:`is_assumed` is false.

    The default is the loop of a plain script, ``outputs = model(…); loss = outputs.loss; loss.backward(); …``,
    whose output lives until the next one has its name. It takes at least as much as that loop: of what is freed at the
    end of forward, the output is taken to hold everything but the fp32 copy of the logits that the loss makes, although
    some of it may belong to the model's local variables.

    Args:
        job: of :func:`predictor.jobs.dispatch.prepare`.
        keep_outputs, zero_grad: the keys of the other loop.
    """
    if not is_assumed(job):
        return None
    by_hand = "after_step" if job.workload.engine == "deepspeed" else zero_grad  # which frees gradients itself
    return replace(job, formula=_with_outputs(job.formula),
                   setup=replace(job.setup, keep_outputs=keep_outputs, zero_grad=by_hand))


def is_assumed(job: Job) -> bool:
    """Whether the loop may be another one than the job's, and that one was compared.

    The loop is known if the workload gives one of its keys, or if the job was learned from a recorded loop.
    """
    workload = job.workload
    known = {"keep_outputs", "zero_grad"} - set(workload.filled_in)
    return not (known or isinstance(job, LearnedJob) or workload.mode != "training") and goes_with(
        "keep_outputs", vars(workload))


def _most(job: Job) -> int:
    """Bytes that no other loop takes more: the outputs of two micro-steps, and gradients where the loop frees them."""
    events, kept = job.formula.micro.events, _with_outputs(job.formula).micro.outputs
    sizes = job.run(job.sure_bytes).row_bytes[events.buffers.size[kept]]
    gradients = 0 if job.workload.engine == "deepspeed" else sum(
        tensor.bytes for tensor in job.formula.facts.parameters if tensor.trainable)
    return 2 * int(sizes.sum()) + gradients


@lru_cache(maxsize=8)
def _with_outputs(formula: Formula) -> Formula:
    """The formula whose micro-step is :func:`_keeping`; always the same one, so that engines are composed once."""
    return replace(formula, micro=_keeping(formula.micro))


def _keeping(micro: MicroStep) -> MicroStep:
    """The micro-step whose output holds what the reference loop frees between forward and backward.

    The fp32 copy of the loss still dies there, and the other buffers and the loss later.
    """
    events = micro.events
    end = int(np.argmax(events.moment == _BACKWARD))
    begin = 1 + int(np.flatnonzero(events.kind[:end] == EventType.ALLOCATE)[-1])
    held = [place for place in range(begin, end) if not _is_copy_of_later(events, place, end)]
    held += range(backward_end(micro), len(events))  # freed with the loss, which the output holds, too
    stay = np.ones(len(events), dtype=bool)
    stay[held] = False

    def moved(rows: np.ndarray) -> np.ndarray:
        earlier = rows.copy()
        earlier[:, 0] -= np.searchsorted(held, rows[:, 0]).astype(rows.dtype)
        return earlier

    columns = {name: getattr(events, name)[stay] for name in ("kind", "buffer", "moment", "step")}
    return replace(micro, events=replace(events, **columns), ready=moved(micro.ready),
                   marks=None if micro.marks is None else moved(micro.marks), outputs=events.buffer[held])


def _is_copy_of_later(events: EventList, place: int, end: int) -> bool:
    """Whether the buffer freed at ``place`` is an fp32 copy of a 16-bit one that is freed later, before ``end``.

    The loss makes such a copy of the logits (transformers 5.17, loss/loss_utils.py, ``ForCausalLMLoss``), which its
    function frees before the model returns them. If the output held the copy, the original would be freed first.
    """
    rows, sizes = events.buffers.size, events.sizes.coefficients
    if events.names[events.buffers.operator[events.buffer[place]]] != CAST:
        return False
    later = events.buffer[place + 1:end]
    return bool((2 * sizes[rows[later]] == sizes[rows[events.buffer[place]]]).all(axis=1).any())
