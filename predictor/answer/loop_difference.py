"""The memory that a training loop of the user's own takes beyond the reference loop, without another trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.events.events import MOMENTS, EventType, Moment
from predictor.events.micro_step import MicroStep
from predictor.jobs.learned_job import LearnedJob
from predictor.jobs.training_job import Job

_BACKWARD = MOMENTS.index(Moment.BACKWARD)


def loop_difference(job: Job, *, keep_outputs: str = "next_forward", zero_grad: str = "after_step") -> int | None:
    """Bytes by which the requested peak would rise, at most, if the job's loop were another one.

    The default is the loop of a plain script, ``outputs = model(**batch); loss = outputs.loss; loss.backward(); …``,
    whose output lives until the next one has its name. The bytes are an upper bound: of all that is freed at the end of
    forward, the output is taken to hold everything, although some of it belongs to the model's local variables.

    Args:
        job: of :func:`predictor.jobs.dispatch.prepare`.
        keep_outputs, zero_grad: the keys of the other loop.

    Returns:
        None if the loop is known: the job does not train, was learned from a recorded loop, was read from a framework's
        own configuration (Hugging Face's Trainer, which all of these run, drops the output before backward:
        transformers 5.17, trainer.py, ``Trainer.compute_loss``), or its workload gives one of the keys.
    """
    workload = job.workload
    known = {"keep_outputs", "zero_grad"} - set(workload.filled_in)
    if workload.mode != "training" or isinstance(job, LearnedJob) or workload.source is not None or known:
        return None
    by_hand = "after_step" if workload.engine == "deepspeed" else zero_grad  # which frees gradients itself
    other = replace(job, formula=replace(job.formula, micro=_keeping(job.formula.micro)),
                    setup=replace(job.setup, keep_outputs=keep_outputs, zero_grad=by_hand))
    limit = workload.capacity
    return max(0, other.run(limit).peak - job.run(limit).peak)


def _keeping(micro: MicroStep) -> MicroStep:
    """The micro-step whose output holds all that the reference loop frees between forward and backward."""
    events = micro.events
    end = int(np.argmax(events.moment == _BACKWARD))
    begin = 1 + int(np.flatnonzero(events.kind[:end] == EventType.ALLOCATE)[-1])
    stay = np.ones(len(events), dtype=bool)
    stay[begin:end] = False

    def moved(rows: np.ndarray) -> np.ndarray:
        earlier = rows.copy()
        earlier[:, 0] -= np.clip(rows[:, 0] - begin, 0, end - begin)
        return earlier

    columns = {name: getattr(events, name)[stay] for name in ("kind", "buffer", "moment", "step")}
    return replace(micro, events=replace(events, **columns), ready=moved(micro.ready),
                   marks=None if micro.marks is None else moved(micro.marks), outputs=events.buffer[begin:end])
