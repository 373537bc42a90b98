"""Puts the jobs of different shapes together: which of them are the same list of events, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.learn.recorded_job import Recorded
from calibrate.learn.shapes import told
from predictor.events.events import Kind


@dataclass(frozen=True)
class Group:
    """Jobs with one list of events, in the same order; ``moved_frees`` of their buffers were held until the latest."""

    jobs: tuple[Recorded, ...]
    moved_frees: int = 0


def ordered(job: Recorded) -> Recorded:
    """The job with frees, and uses by other streams, that follow each other in the order of their buffers.

    Between two allocations their order makes no difference to the allocator: free blocks merge to the same result.
    Libraries walk over sets there (ZeRO-3 over the parameters of a module).
    """
    order = np.arange(len(job.kind))
    is_loose = (job.kind == -1) | (job.kind >= Kind.RECORD_STREAM)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_loose, [False]]).astype(np.int8)))
    for begin, end in zip(edges[::2], edges[1::2]):
        order[begin:end] = begin + np.lexsort((-job.kind[begin:end], job.buffer[begin:end]))  # uses before the free
    place = {name: getattr(job, name)[order] for name in ("kind", "buffer")}
    return replace(job, **place)


def groups(jobs: Sequence[Recorded]) -> tuple[list[Group], list[str]]:
    """Jobs that are one list together, the largest group first; one line for each group on where it first differs."""
    found: list[list[Recorded]] = []
    for job in map(ordered, jobs):
        for members in found:
            if _same_allocations(members[0], job):
                members.append(job)
                break
        else:
            found.append([job])
    found.sort(key=len, reverse=True)
    made = [_held(members) for members in found]
    return made, [first_difference(made[0].jobs[0], group.jobs[0]) for group in made[1:]]


def _same_allocations(one: Recorded, other: Recorded) -> bool:
    """Whether both ask for the same buffers in the same order, from the same places."""
    if (one.operator, one.module) != (other.operator, other.module):
        return False
    rows = [np.flatnonzero(job.kind != -1) for job in (one, other)]
    return all(np.array_equal(getattr(one, name)[rows[0]], getattr(other, name)[rows[1]])
               for name in ("kind", "buffer", "moment", "step")) and np.array_equal(one.stream, other.stream)


def _held(members: list[Recorded]) -> Group:
    """The members with each buffer freed where the last of them frees it, in events other than frees."""
    after = []  # of each job and buffer: how many other events come before its free
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


def _freed_at(job: Recorded, latest: np.ndarray) -> Recorded:
    """The job with its frees moved to behind so many other events."""
    kept = np.flatnonzero(job.kind != -1)
    freed = np.flatnonzero(latest < np.iinfo(np.int64).max)
    freed = freed[np.argsort(latest[freed], kind="stable")]
    places = latest[freed]
    before = np.maximum(places - 1, 0)
    columns = {
        "kind": np.insert(job.kind[kept], places, -1), "buffer": np.insert(job.buffer[kept], places, freed),
        "moment": np.insert(job.moment[kept], places, job.moment[kept][before]),
        "step": np.insert(job.step[kept], places, job.step[kept][before])}
    return replace(job, **{name: column.astype(getattr(job, name).dtype) for name, column in columns.items()})


def first_difference(one: Recorded, other: Recorded) -> str:
    """One line on where two jobs first ask for something else."""
    rows = [np.flatnonzero(job.kind != -1) for job in (one, other)]
    for number, (a, b) in enumerate(zip(*(row.tolist() for row in rows)), 1):
        if one.label(a)[:1] + one.label(a)[2:] != other.label(b)[:1] + other.label(b)[2:]:
            return (f"{_named(other)} has another list than {_named(one)}: its allocation {number:,} is "
                    f"\"{other.where(b)}\", there \"{one.where(a)}\"")
    longer, shorter = (one, other) if len(rows[0]) > len(rows[1]) else (other, one)
    count = min(map(len, rows))
    if len(rows[0]) == len(rows[1]):
        return (f"{_named(other)} has another list than {_named(one)}: the same operators, but on other buffers or "
                "streams")
    return (f"{_named(other)} has another list than {_named(one)}: {_named(longer)} goes on after {count:,} "
            f"allocations with \"{longer.where(int(max(rows, key=len)[count]))}\", {_named(shorter)} ends")


def _named(job: Recorded) -> str:
    return told(job.shape)
