"""The memory that a training loop of the user's own takes beyond the reference loop, without another trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from predictor.answer.prediction import Caution
from predictor.jobs.learned_job import LearnedJob
from predictor.jobs.survival import FITS
from predictor.jobs.training_job import Job
from predictor.workload.compared import goes_with

KEEPING = {"next_forward": "outputs = model(…); loss = outputs.loss; loss.backward() in a plain script",
           "backward": "outputs = model(…); loss = outputs.loss; loss.backward() in a function"}
"""Value of the key ``keep_outputs`` -> a loop that keeps its outputs so long. The usual one comes first."""
ZEROING = {"before_backward": "optimizer.zero_grad() before loss.backward()",
           "before_forward": "optimizer.zero_grad() at the top of the loop"}
"""Value of the key ``zero_grad`` -> a loop that keeps gradients so long."""
Loop = Mapping[str, str]
OUTPUTS: tuple[Loop, ...] = tuple({"keep_outputs": keep, "zero_grad": "after_step"} for keep in KEEPING)
GRADIENTS: tuple[Loop, ...] = tuple({"keep_outputs": "none", "zero_grad": zeroing} for zeroing in ZEROING)
BOTH: tuple[Loop, ...] = tuple({"keep_outputs": keep, "zero_grad": "before_backward"} for keep in KEEPING)
MOST_EVENTS = 4_000_000
"""Traced events of a run up to which its other loops are simulated, up to twelve times. Above it, the most that they
can take is said."""

_NOT_SIMULATED = ("the model's output is assumed to be freed before backward, and gradients right after the optimizer "
                  "step; loops that keep them take at most so much more, but were not simulated, because this run has "
                  "too many allocations (add --loops)")


def other_loops(job: Job, free_bytes: int, verdict: str = FITS) -> Iterator[Caution]:
    """Loops with which the job would no longer surely fit, or surely not fit, and the bytes that each reserves more.

    Each is simulated: idle memory may take what a loop keeps, and what a loop keeps may split idle memory. Of the loops
    that keep the model's output the one that reserves the most, and likewise of those that keep gradients; one that
    keeps both only if neither alone changes the verdict. Nothing if the loop is known. Of a run with more than
    :data:`MOST_EVENTS` events none is simulated.

    Args:
        job: surely fits, or may fit; its workload has a capacity.
        free_bytes: bytes that may be predicted more while it does. Nothing is simulated if the tensors of no other loop
            take more than this.
        verdict: its verdict.
    """
    if not is_assumed(job) or (most := most_bytes(job)) <= free_bytes:
        return
    if job.traced_events > MOST_EVENTS:
        yield Caution(_NOT_SIMULATED, most, free_bytes, "the loop keeps the model's output or gradients, which was not "
                      "simulated", verdict)
        return
    outputs = _worst(job, free_bytes, verdict, OUTPUTS)
    if outputs:
        yield caution(*outputs, free_bytes, verdict)
    if job.workload.engine == "deepspeed":  # which frees gradients itself
        return
    gradients = _worst(job, free_bytes, verdict, GRADIENTS)
    if gradients:
        yield caution(*gradients, free_bytes, verdict)
    both = None if outputs or gradients else _worst(job, free_bytes, verdict, BOTH)
    if both:
        yield caution(*both, free_bytes, verdict)


def caution(loop: Loop, more_bytes: int, free_bytes: int, verdict: str) -> Caution:
    """What the assumed loop frees and this one keeps, where that changes the verdict; bytes as in :class:`Caution`."""
    keeping, zeroing = KEEPING.get(loop["keep_outputs"]), ZEROING.get(loop["zero_grad"])
    freed = "gradients are assumed to be freed right after the optimizer step"
    text = f"{freed}; {zeroing} keeps them" + (f", and {keeping} keeps the output" if keeping else "") if zeroing else \
        f"the model's output is assumed to be freed before backward; {keeping} keeps it"
    return Caution(f"{text} ({_keys(loop)})", more_bytes, free_bytes, f"the loop keeps {said(loop)}", verdict)


def said(loop: Loop) -> str:
    """What a loop keeps, with the keys that say so."""
    kept = ["gradients"] * (loop["zero_grad"] in ZEROING) + ["the model's output"] * (loop["keep_outputs"] in KEEPING)
    return f"{' and '.join(kept)} ({_keys(loop)})"


def _keys(loop: Loop) -> str:
    return ", ".join(f"{key} {value}" for key, value in loop.items() if value in KEEPING or value in ZEROING)


def loops(job: Job) -> tuple[Loop, ...]:
    """The keys of each of the loops of :func:`other_loops`, those that take the most first; empty if it is known."""
    if not is_assumed(job):
        return ()
    return OUTPUTS if job.workload.engine == "deepspeed" else (*BOTH, *GRADIENTS, *OUTPUTS)


def _worst(job: Job, free_bytes: int, verdict: str, tried: Sequence[Loop]) -> tuple[Loop, int] | None:
    """Of these loops that worsen the verdict the one that reserves the most, and the bytes that it reserves more."""
    capacity = job.workload.capacity
    assert capacity is not None  # only a job with a capacity fits
    limit, worst = job.margin.limits(capacity)[0 if verdict == FITS else 1], None
    for loop in tried:
        other = with_loop(job, **loop)
        outcome = None if other is None else other.judge()
        if outcome is None or outcome.verdict in (FITS, verdict):
            continue
        reserved = outcome.reserved.bytes if outcome.reserved.high is None else outcome.reserved.high
        more = free_bytes + reserved - (reserved if limit is None else limit)
        if worst is None or more > worst[1]:
            worst = loop, more
    return worst


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


def most_bytes(job: Job) -> int:
    """Bytes that no other loop takes more: the outputs of two micro-steps, and gradients where the loop frees them."""
    micro = job.formula.micro
    sizes = job.run(job.sure_bytes).row_bytes[micro.events.buffers.size[micro.outputs]]
    gradients = 0 if job.workload.engine == "deepspeed" else sum(
        tensor.bytes for tensor in job.formula.facts.parameters if tensor.trainable)
    return 2 * int(sizes.sum()) + gradients
