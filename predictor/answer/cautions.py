"""Cautions: memory that a prediction may leave out, where it is enough to change the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from predictor.answer.loop_difference import other_loops
from predictor.answer.prediction import Bound, Caution
from predictor.jobs.survival import FITS, UNCERTAIN
from predictor.jobs.training_job import Job
from predictor.workload.value_sources import Source

MOST = 3
"""Cautions of one prediction; the largest are kept."""


def cautions(job: Job, verdict: str | None, reserved: Bound) -> tuple[Caution, ...]:
    """What could turn ``fits`` into another verdict, or ``uncertain`` into ``does_not_fit``, the largest first.

    Args:
        reserved: the predicted reserved peak.
    """
    free = free_bytes(job, verdict, reserved)
    if free is None or verdict is None:
        return ()
    loops = (caution for caution in other_loops(job, free, verdict) if caution.more_bytes > free)
    seen = [*loops, *of_framework(job, job.workload.source, reserved, verdict)]
    return tuple(sorted(seen, key=lambda caution: -caution.more_bytes)[:MOST])


def of_framework(job: Job, source: Source | None, reserved: Bound, verdict: str = FITS) -> Iterator[Caution]:
    """What the user's framework may take beyond a job, where it is enough to change the verdict.

    Arguments are those of :func:`cautions`, with the configuration that the workload's values came from.
    """
    free = free_bytes(job, verdict, reserved)
    if source is None or free is None:
        return
    for note in source.notes:
        more = note.more_bytes(job.workload) if note.more_bytes else 0
        if more > max(0, free):
            yield Caution(note.about(job.workload), more, free, verdict=verdict)


def free_bytes(job: Job, verdict: str | None, reserved: Bound) -> int | None:
    """Bytes that may be predicted more while the verdict stays; None if no number of them changes it."""
    capacity = job.workload.capacity
    if capacity is None or verdict not in (FITS, UNCERTAIN):
        return None
    surely, at_best = job.margin.limits(capacity)
    if verdict == FITS:
        return surely - job.margin.predicted(reserved.most)
    return None if at_best is None else max(0, at_best - reserved.bytes)
