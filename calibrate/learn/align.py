"""Groups recorded jobs of different shapes by their list of events, and describes where the lists differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.learn.recorded_job import RecordedJob
from calibrate.learn.shapes import shape_text
from predictor.events.events import EventType


@dataclass(frozen=True)
class Group:
    """Jobs with the same list of events.

    ``moved_frees`` buffers were freed at different places in these jobs; they now end at the latest of them.
    """

    jobs: tuple[RecordedJob, ...]
    moved_frees: int = 0


def ordered(job: RecordedJob) -> RecordedJob:
    """The job with neighbouring frees, and neighbouring uses by other streams, sorted by buffer.

    Between two allocations their order makes no difference to the allocator, because free blocks merge to the same
    result. Libraries iterate over sets there (ZeRO-3 over the parameters of a module), so the order varies.
    """
    order = np.arange(len(job.kind))
    is_loose = (job.kind == -1) | (job.kind >= EventType.RECORD_STREAM)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_loose, [False]]).astype(np.int8)))
    for begin, end in zip(edges[::2], edges[1::2]):
        order[begin:end] = begin + np.lexsort((-job.kind[begin:end], job.buffer[begin:end]))  # uses before the free
    return replace(job, kind=job.kind[order], buffer=job.buffer[order])


def groups(jobs: Sequence[RecordedJob]) -> tuple[list[Group], list[str]]:
    """Jobs grouped by their list of events, the largest group first, and one line per further group on its first
    difference."""
    grouped: list[list[RecordedJob]] = []
    for job in map(ordered, jobs):
        for members in grouped:
            if _same_allocations(members[0], job):
                members.append(job)
                break
        else:
            grouped.append([job])
    grouped.sort(key=len, reverse=True)
    result = [_freed_latest(members) for members in grouped]
    return result, [first_difference(result[0].jobs[0], group.jobs[0]) for group in result[1:]]


def _same_allocations(first: RecordedJob, second: RecordedJob) -> bool:
    """Whether both jobs allocate the same buffers in the same order, from the same operators and modules."""
    if (first.operator, first.module) != (second.operator, second.module):
        return False
    rows = [np.flatnonzero(job.kind != -1) for job in (first, second)]
    return all(np.array_equal(getattr(first, name)[rows[0]], getattr(second, name)[rows[1]])
               for name in ("kind", "buffer", "moment", "step")) and np.array_equal(first.stream, second.stream)


def _freed_latest(members: list[RecordedJob]) -> Group:
    """The group of the members, with each buffer freed as late as in any of them."""
    after = []  # per job and buffer: number of events other than frees before its free
    for job in members:
        others = np.cumsum(job.kind != -1)
        at = np.full(len(job.size), np.iinfo(np.int64).max)
        rows = np.flatnonzero(job.kind == -1)
        at[job.buffer[rows]] = others[rows]
        after.append(at)
    table = np.stack(after)
    moved = (table != table[0]).any(axis=0)
    if not moved.any():
        return Group(tuple(members))
    latest = table.max(axis=0)
    return Group(tuple(_freed_at(job, latest) for job in members), int(moved.sum()))


def _freed_at(job: RecordedJob, latest: np.ndarray) -> RecordedJob:
    """The job with each free moved behind the given number of other events."""
    other_events = np.flatnonzero(job.kind != -1)
    freed = np.flatnonzero(latest < np.iinfo(np.int64).max)
    freed = freed[np.argsort(latest[freed], kind="stable")]
    places = latest[freed]
    before = np.maximum(places - 1, 0)
    return replace(
        job,
        kind=np.insert(job.kind[other_events], places, -1).astype(job.kind.dtype),
        buffer=np.insert(job.buffer[other_events], places, freed).astype(job.buffer.dtype),
        moment=np.insert(job.moment[other_events], places, job.moment[other_events][before]).astype(job.moment.dtype),
        step=np.insert(job.step[other_events], places, job.step[other_events][before]).astype(job.step.dtype))


def first_difference(first: RecordedJob, second: RecordedJob) -> str:
    """One line on the first allocation in which two jobs differ."""
    rows = [np.flatnonzero(job.kind != -1) for job in (first, second)]
    for number, (a, b) in enumerate(zip(*(row.tolist() for row in rows)), 1):
        if first.label(a)[:1] + first.label(a)[2:] != second.label(b)[:1] + second.label(b)[2:]:
            return (f"{_job_text(second)} has another list of events than {_job_text(first)}: its allocation "
                    f"{number:,} is \"{second.where(b)}\", the other job's is \"{first.where(a)}\"")
    longer, shorter = (first, second) if len(rows[0]) > len(rows[1]) else (second, first)
    count = min(map(len, rows))
    if len(rows[0]) == len(rows[1]):
        return (f"{_job_text(second)} has another list of events than {_job_text(first)}: the same operators, but on "
                "other buffers or streams")
    return (f"{_job_text(second)} has another list of events than {_job_text(first)}: {_job_text(longer)} goes on "
            f"after {count:,} allocations with \"{longer.where(int(max(rows, key=len)[count]))}\", "
            f"{_job_text(shorter)} ends")


def _job_text(job: RecordedJob) -> str:
    return shape_text(job.shape)
