"""Runs a campaign under torchrun: every job runs on all GPUs, with real NCCL communicators.

All ranks go through the same jobs at the same time, and each measures itself, as ``peakcast measure`` does under
torchrun. Only rank 0 writes: the rows of the first and of the last rank, which also name a failure of another rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, Store
from calibrate.campaign.run import Guard

AGENT_STORE, PORT = "TORCHELASTIC_USE_AGENT_STORE", "MASTER_PORT"
"""Environment variables of torchrun's processes (torch/distributed/elastic, rendezvous.py, 2.11)."""


def world_size() -> int:
    """The number of ranks that torchrun started."""
    return int(os.environ["WORLD_SIZE"])


def is_first() -> bool:
    """Whether this process is rank 0, which writes."""
    return os.environ["RANK"] == "0"


def run(jobs: Sequence[Job], row_of: Callable[[Job], Row], store: Store | None, over: Callable[[], bool],
        done: Callable[[Row], None] = lambda row: None) -> int:
    """Runs, in order and on all ranks, the jobs that have no row in the store.

    Args:
        store: None on all ranks but rank 0.
        over: tells rank 0, before each job, whether the time is over.
        done: is called on rank 0 with the last rank's row of each job, after it is stored.

    Returns:
        The number of jobs that had not started when the time was over.

    Raises:
        InputError: the first jobs all failed (on rank 0 only).
    """
    import torch.distributed as dist

    dist.init_process_group("gloo")
    base = int(os.environ[PORT])
    # torchrun's own store remembers the previous job's process group: each job gets a store of its own, at its own port
    os.environ[AGENT_STORE] = "False"
    guard = Guard()
    try:
        known = {row.id for row in store.rows} if store else set()
        left = _from_first([job for job in jobs if of_rank(job, world_size() - 1).id not in known])
        for number, job in enumerate(left):
            if _from_first(over() or guard.all_failed):
                guard.check()
                return len(left) - number
            os.environ[PORT] = str(base + 1 + number % 1000)
            rows: list[Row | None] | None = [None] * world_size() if is_first() else None
            dist.gather_object(row_of(job), rows)
            if store and rows:
                for row in kept(job, cast("list[Row]", rows)):  # gathered from every rank
                    store.add(row)
                guard.count(row)
                done(row)
        guard.check()
        return 0
    finally:
        dist.destroy_process_group()


def kept(job: Job, rows: Sequence[Row]) -> list[Row]:
    """The rows to store: the first and the last rank's. If any rank failed, the job failed, and both rows name it."""
    worst = next((rank for rank, row in enumerate(rows) if row.broken),
                 next((rank for rank, row in enumerate(rows) if row.failed), None))
    result = []
    for rank in sorted({0, len(rows) - 1}):
        own = of_rank(job, rank)
        row = replace(rows[rank], id=own.id, job=dict(own.keys))
        if worst is not None and not rows[worst].skipped:
            row = replace(row, failed=f"rank {worst}: {rows[worst].failed}",
                          record=None if rows[worst].broken else row.record)
        result.append(row)
    return result


def of_rank(job: Job, rank: int) -> Job:
    """The job of one rank, with an id of its own."""
    return replace(job, keys={**job.keys, "rank": rank})


def once_a_job(rows: Iterable[Row], ranks: int) -> list[Row]:
    """The rows, with only the last rank's row of each job that ran on ``ranks`` ranks."""
    return [row for row in rows if row.job.get("data_parallel_size") != ranks or row.job.get("rank") == ranks - 1]


def _from_first(value: Any) -> Any:
    """Broadcasts rank 0's value to every rank."""
    import torch.distributed as dist

    values = [value]
    dist.broadcast_object_list(values)
    return values[0]
