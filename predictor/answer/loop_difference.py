"""The memory that a training loop of the user's own takes beyond the reference loop, without another trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from predictor.answer.prediction import Caution
from predictor.jobs.learned_job import LearnedJob
from predictor.jobs.survival import FITS
from predictor.jobs.training_job import Job
from predictor.workload.compared import goes_with

KEEPING = {"next_forward": "outputs = model(…); loss = outputs.loss; loss.backward() in a plain script",
           "backward": "outputs = model(…); loss = outputs.loss; loss.backward() in a function"}
"""Value of the key ``keep_outputs`` -> a loop that keeps its outputs so long. The usual one comes first."""
_FREED = "gradients are assumed to be freed right after the optimizer step"
_ZEROED = "optimizer.zero_grad() before loss.backward()"


def other_loops(job: Job, free_bytes: int, verdict: str = FITS) -> Iterator[Caution]:
    """Loops with which the job would no longer surely fit, or surely not fit, and the bytes that each reserves more.

    Each is simulated: idle memory may take what a loop keeps, and what a loop keeps may split idle memory. First a loop
    that keeps the model's output, then one that keeps gradients; one that keeps both only if neither alone changes the
    verdict. Nothing if the loop is known.

    Args:
        job: surely fits, or may fit; its workload has a capacity.
        free_bytes: bytes that may be reserved more while it does. Nothing is simulated if the tensors of no other loop
            take more than this.
        verdict: its verdict.
    """
    if not is_assumed(job) or _most(job) <= free_bytes:
        return
    dies = partial(_first_that_dies, job, free_bytes, verdict)
    keep, outputs = dies(KEEPING, "after_step")
    if keep:
        yield Caution(f"the model's output is assumed to be freed before backward; {KEEPING[keep]} keeps it "
                      f"(keep_outputs {keep})", outputs, free_bytes,
                      f"the loop keeps the model's output (keep_outputs {keep})", verdict)
    if job.workload.engine == "deepspeed":  # which frees gradients itself
        return
    none, gradients = dies(("none",), "before_backward")
    if none:
        yield Caution(f"{_FREED}; {_ZEROED} keeps them (zero_grad before_backward)", gradients, free_bytes,
                      "the loop keeps gradients (zero_grad before_backward)", verdict)
    if keep or none:
        return
    keep, both = dies(KEEPING, "before_backward")
    if keep:
        keys = f"keep_outputs {keep}, zero_grad before_backward"
        yield Caution(f"{_FREED}; {_ZEROED} keeps them, and {KEEPING[keep]} keeps the output ({keys})", both,
                      free_bytes, f"the loop keeps gradients and the model's output ({keys})", verdict)


def loops(job: Job) -> tuple[Mapping[str, str], ...]:
    """The keys of each of the loops of :func:`other_loops`, those that take the most first; empty if it is known."""
    if not is_assumed(job):
        return ()
    outputs = [{"keep_outputs": keep, "zero_grad": "after_step"} for keep in KEEPING]
    if job.workload.engine == "deepspeed":  # which frees gradients itself
        return tuple(outputs)
    gradients = [{"keep_outputs": keep, "zero_grad": "before_backward"} for keep in (*KEEPING, "none")]
    return (*gradients, *outputs)


def _first_that_dies(job: Job, free_bytes: int, verdict: str, keeping: Iterable[str],
                     zero_grad: str) -> tuple[str, int]:
    """The first ``keep_outputs`` with which the verdict is a worse one, and the bytes that it reserves more.

    Without one an empty name and 0.
    """
    capacity = job.workload.capacity
    assert capacity is not None  # only a job with a capacity fits
    for keep in keeping:
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
    whose output lives until the next one has its name.

    Args:
        job: of :func:`predictor.jobs.dispatch.prepare`.
        keep_outputs, zero_grad: the keys of the other loop.
    """
    if not is_assumed(job):
        return None
    by_hand = "after_step" if job.workload.engine == "deepspeed" else zero_grad  # which frees gradients itself
    return replace(job, setup=replace(job.setup, keep_outputs=keep_outputs, zero_grad=by_hand))


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
    micro = job.formula.micro
    sizes = job.run(job.sure_bytes).row_bytes[micro.events.buffers.size[micro.outputs]]
    gradients = 0 if job.workload.engine == "deepspeed" else sum(
        tensor.bytes for tensor in job.formula.facts.parameters if tensor.trainable)
    return 2 * int(sizes.sum()) + gradients
