"""Cautions: memory that a prediction may leave out, where it is enough to change the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from predictor.answer.prediction import Caution
from predictor.jobs.training_job import Job

MOST = 3
"""Cautions of one prediction; the largest are kept."""
SEEN_OUTSIDE = {False: int(0.7 * (1 << 30)), True: int(2.05 * (1 << 30))}
"""The most bytes that processes of real jobs were seen to hold outside PyTorch's allocator, on one GPU and on several.
They come from out-of-memory messages of PyTorch in public threads, which say "this process has … memory in use" beside
what PyTorch had allocated and reserved."""


def cautions(job: Job, verdict: str | None, reserved_bytes: int) -> tuple[Caution, ...]:
    """What could turn ``fits`` into another verdict, the largest first; empty for any other verdict.

    Args:
        reserved_bytes: upper end of the predicted reserved peak.
    """
    if verdict != "fits":
        return ()
    assert job.workload.capacity is not None  # there is no verdict without
    free = job.workload.capacity - reserved_bytes - job.margin.runtime_high
    seen = [Caution(text, more, free) for source in SOURCES for text, more in source(job) if more > free]
    return tuple(sorted(seen, key=lambda caution: -caution.more_bytes)[:MOST])


def _runtime(job: Job) -> Iterator[tuple[str, int]]:
    """The CUDA context, NCCL and libraries, unless they were measured."""
    if job.profile is not None and job.profile.profile.runtime.measured_on == "device":
        return
    several = job.setup.world_size > 1
    jobs = "jobs on several GPUs" if several else "jobs on one GPU"
    yield (f"CUDA context, NCCL and libraries are assumed, not measured; other people's {jobs} held more",
           SEEN_OUTSIDE[several] - job.margin.runtime_high)


SOURCES: tuple[Callable[[Job], Iterator[tuple[str, int]]], ...] = (_runtime,)
"""Functions that yield a cause in words, with the bytes that it may take more than predicted."""
