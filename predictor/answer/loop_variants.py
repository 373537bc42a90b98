"""How much reserved memory depends on details of the training loop: the same job in several loops, each simulated.

Loops with the same requested bytes may reserve different amounts, because small buffers that live a little longer split
what would be one idle block. The loops differ in when a batch comes to the GPU and goes, in what outlives backward, in
how many steps run, and in how the model gets to the GPU. One differs in the driver instead: among free blocks of one
size PyTorch's allocator takes that with the lowest address, and drivers give addresses in different orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from predictor.allocator.constants import DOWNWARD_STEP
from predictor.allocator.simulate import Device
from predictor.answer import loop_difference
from predictor.answer.answer import device_bound
from predictor.answer.prediction import LoopVariant, Prediction
from predictor.common.errors import InputError
from predictor.course.parts import CutRun
from predictor.course.player import Player
from predictor.events.composed_run import Run
from predictor.jobs.learned_job import LearnedJob
from predictor.jobs.training_job import Job

STEPS = 10
"""Steps of the longer loops."""
MOST_MICRO_STEPS = 16
"""Micro-steps of a step that are simulated; further ones are like the last but one."""
AHEAD = 2
"""Batches on the GPU where the loader is one batch ahead, from the first step on."""
MOST_EVENTS = 25_000_000
"""Events of the longer loops that are simulated, each of up to eleven loops in some two seconds."""
FRAGILE = 0.01
"""A spread of reserved memory beyond this part of it is called fragile."""


def with_loops(prediction: Prediction, job: Job) -> Prediction:
    """The prediction with its reserved memory in other loops, which ``_low`` and ``_high`` then include."""
    return with_variants(prediction, tuple(loop_variants(job, prediction.peak.reserved_rank)), job)


def with_variants(prediction: Prediction, variants: tuple[LoopVariant, ...], job: Job) -> Prediction:
    """The prediction of a job with these loops, which ``_low`` and ``_high`` of reserved memory then include."""
    known = [one.reserved_bytes for one in variants if one.reserved_bytes is not None]
    reserved = prediction.reserved
    if known:
        low, high = ((reserved.bytes if bound is None else bound) for bound in (reserved.low, reserved.high))
        reserved = replace(reserved, low=min(low, *known), high=max(high, *known))
    device = prediction.device and device_bound(reserved, job.margin)
    fragile = bool(known) and max(known) > min(known) * (1 + FRAGILE)
    return replace(prediction, loops=variants, is_fragile=fragile, reserved=reserved, device=device)


def loop_variants(job: Job, rank: int) -> Iterator[LoopVariant]:
    """A rank of the job in each loop; without loops that were not compared for it.

    Raises:
        InputError: the loops have too many events.
    """
    if isinstance(job, LearnedJob) or job.workload.mode != "training":
        return
    _check_length(job)
    capacity = job.workload.capacity
    limit = None if capacity is None else max(0, capacity - job.margin.runtime_expected)

    def variant(loop: str, job: Job, steps: int, held: int | None) -> LoopVariant:
        run = replace(job, evaluation=None).run(limit, rank)
        player = Player(Device(job.setup.allocator, limit, capacity), held)
        survives = _plays(run, job, player, steps, ahead=held == AHEAD)
        return LoopVariant(loop, player.state().peak_reserved_bytes if survives else None)

    for text, steps, held in (
            ("the reference loop: one batch for all steps", 3, None),
            (f"the reference loop, {STEPS} steps", STEPS, None),
            (f"each micro-step brings its batch and replaces the last one, {STEPS} steps", STEPS, 1),
            (f"the loader is one batch ahead, {STEPS} steps", STEPS, AHEAD)):
        yield variant(text, job, steps, held)
    if not job.setup.allocator.address_step_bytes:
        yield variant("the reference loop, addresses of segments go down, as on an H100", _going_down(job), 3, None)
    if job.workload.engine == "torch" and not job.setup.quantization:
        place = "moved to the GPU" if job.setup.device_map else "loaded straight to the GPU (device_map)"
        other = replace(job, setup=replace(job.setup, device_map=not job.setup.device_map))
        yield variant(f"the reference loop, the model is {place}", other, 3, None)
    for keep in loop_difference.KEEPING:
        kept = loop_difference.with_loop(job, keep_outputs=keep)
        if kept is not None:
            yield variant(f"the output is kept (keep_outputs {keep}), {STEPS} steps", kept, STEPS, 1)
            if keep == "next_forward":
                yield variant(f"the output is kept, and the loader is one batch ahead, {STEPS} steps", kept, STEPS,
                              AHEAD)
    both = loop_difference.with_loop(job, keep_outputs="next_forward", zero_grad="before_backward")
    if both is not None and both.setup.zero_grad != job.setup.zero_grad:
        yield variant(f"output and gradients are kept (zero_grad before_backward), {STEPS} steps", both, STEPS, 1)


def _check_length(job: Job) -> None:
    """Checks that the longer loops have at most :data:`MOST_EVENTS` events.

    Raises:
        InputError: they have more.
    """
    if (events := STEPS * _micro_steps(job) * len(job.formula.micro.events)) > MOST_EVENTS:
        raise InputError(f"loops: {STEPS} steps of this job have {events:,} allocations and frees, and at most "
                         f"{MOST_EVENTS:,} are simulated in each loop: leave it out, or give fewer images, a smaller "
                         "batch or fewer gradient_accumulation_steps")


def _micro_steps(job: Job) -> int:
    """Micro-steps of a step that are simulated."""
    return min(job.setup.gradient_accumulation_steps, MOST_MICRO_STEPS)


def _going_down(job: Job) -> Job:
    allocator = replace(job.setup.allocator, address_step_bytes=DOWNWARD_STEP)
    return replace(job, setup=replace(job.setup, allocator=allocator))


def _plays(run: Run, job: Job, player: Player, steps: int, *, ahead: bool) -> bool:
    """Plays so many steps of a run with equal batches. Returns whether they survive.

    Args:
        ahead: whether a further batch is on the GPU before the first step.
    """
    cut = CutRun(run.events, job.formula.micro, job.setup.micro_steps)
    count = _micro_steps(job)
    parts = [cut.start, *([cut.micro_step(1, 0, count).only_inputs()] if ahead else [])]
    for step in range(1, steps + 1):
        parts += [cut.micro_step(step, index, count) for index in range(count)] + [cut.optimizer_step(step)]

    def sizes(rows: np.ndarray) -> np.ndarray:
        return run.row_bytes[run.events.buffers.size[rows]]

    return all(player.play(part, sizes) is None for part in parts)
