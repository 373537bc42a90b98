"""Cautions: memory that a prediction may leave out, where it is enough to change the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from predictor.answer.loop_difference import other_loops
from predictor.answer.prediction import Caution
from predictor.jobs.training_job import Job
from predictor.workload.value_sources import Source

MOST = 3
"""Cautions of one prediction; the largest are kept."""


def cautions(job: Job, verdict: str | None, reserved_bytes: int) -> tuple[Caution, ...]:
    """What could turn ``fits`` into another verdict, the largest first; empty for any other verdict.

    Args:
        reserved_bytes: upper end of the predicted reserved peak.
    """
    if verdict != "fits":
        return ()
    free = _free_bytes(job, reserved_bytes)
    loops = (caution for caution in other_loops(job, free) if caution.more_bytes > free)
    seen = [*loops, *of_framework(job, job.workload.source, reserved_bytes)]
    return tuple(sorted(seen, key=lambda caution: -caution.more_bytes)[:MOST])


def of_framework(job: Job, source: Source | None, reserved_bytes: int) -> Iterator[Caution]:
    """What the user's framework may take beyond a job that surely fits, where it is enough to change that.

    Arguments are those of :func:`cautions`, with the configuration that the workload's values came from.
    """
    free = _free_bytes(job, reserved_bytes)
    for note in source.notes if source else ():
        more = note.more_bytes(job.workload) if note.more_bytes else 0
        if more > free:
            yield Caution(note.about(job.workload), more, free)


def _free_bytes(job: Job, reserved_bytes: int) -> int:
    assert job.workload.capacity is not None  # only a job with a capacity fits
    return job.workload.capacity - reserved_bytes - job.margin.runtime_high
