"""The campaign where torchrun started a process a GPU: every job runs on all of them, with a real group of NCCL's.

All ranks walk through the same jobs in step; each measures its own, as ``peakcast measure`` does under torchrun. Rank 0
alone writes: the rows of the first and the last rank, which say so if another rank failed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, Store
from calibrate.campaign.run import Guard

AGENT_STORE, PORT = "TORCHELASTIC_USE_AGENT_STORE", "MASTER_PORT"
"""Environment variables of torchrun's processes (torch/distributed/elastic, rendezvous.py, 2.11)."""


def world_size() -> int:
    """How many ranks torchrun started."""
    return int(os.environ["WORLD_SIZE"])


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return os.environ["RANK"] == "0"


def run(jobs: Sequence[Job], row_of: Callable[[Job], Row], store: Store | None, over: Callable[[], bool],
        done: Callable[[Row], None] = lambda row: None) -> int:
    """Run, in order and on all ranks, the jobs that the store has no row of.

    Args:
        store: rank 0's; None elsewhere.
        over: asked on rank 0 before each job: whether the time is over.
        done: told on rank 0 of the last rank's row of each job, after it is kept.

    Returns:
        How many jobs were left when the time was over.

    Raises:
        InputError: on rank 0: all jobs fail from the first on.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo")
    base = int(os.environ[PORT])
    # torchrun's own store remembers the group of the job before: each job gets one of its own, at a port of its own
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
                for row in kept(job, rows):
                    store.add(row)
                guard.count(row)
                done(row)
        guard.check()
        return 0
    finally:
        dist.destroy_process_group()


def kept(job: Job, rows: Sequence[Row]) -> list[Row]:
    """What is kept of all ranks' rows: the first's and the last's. If one failed, the job did, and both say which."""
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
    """The job as one rank measures it: a job of its own, with an id of its own."""
    return replace(job, keys={**job.keys, "rank": rank})


def once_a_job(rows: Iterable[Row], ranks: int) -> list[Row]:
    """Of jobs that so many ranks ran together the last rank's row only."""
    return [row for row in rows if row.job.get("data_parallel_size") != ranks or row.job.get("rank") == ranks - 1]


def _from_first(value):
    """Rank 0's value, on every rank."""
    import torch.distributed as dist

    values = [value]
    dist.broadcast_object_list(values)
    return values[0]
