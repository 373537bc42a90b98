"""Cautions: memory that a prediction may leave out, where it is enough to change the verdict."""

from __future__ import annotations

from predictor.answer.loop_difference import other_loops
from predictor.answer.prediction import Caution
from predictor.jobs.training_job import Job

MOST = 3
"""Cautions of one prediction; the largest are kept."""


def cautions(job: Job, verdict: str | None, reserved_bytes: int) -> tuple[Caution, ...]:
    """What could turn ``fits`` into another verdict, the largest first; empty for any other verdict.

    Args:
        reserved_bytes: upper end of the predicted reserved peak.
    """
    if verdict != "fits":
        return ()
    assert job.workload.capacity is not None  # there is no verdict without
    free = job.workload.capacity - reserved_bytes - job.margin.runtime_high
    notes = job.workload.source.notes if job.workload.source else ()
    known = [(note.about(job.workload), note.more_bytes(job.workload)) for note in notes if note.more_bytes]
    seen = [Caution(text, more, free) for text, more in (*other_loops(job, free), *known) if more > free]
    return tuple(sorted(seen, key=lambda caution: -caution.more_bytes)[:MOST])
