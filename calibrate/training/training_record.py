"""The record of a training: what ``peakcast measure --json -o`` would have written of the same job."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from calibrate.dryrun.hooks import SETTING
from calibrate.emulator import event_completion, is_emulated
from calibrate.job import device, single_rank
from calibrate.records.moment_peaks import MomentPeaks
from calibrate.records.record import (
    SCHEMA_VERSION,
    InTraining,
    MeasuredJob,
    OutOfMemory,
    RankChoice,
    Record,
)
from calibrate.training import loop_keys
from calibrate.training.predictions import Foreseen
from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.suggestions import named
from predictor.version import VERSION
from predictor.workload.workload import Workload


class Clock:
    """When it began."""

    def __init__(self) -> None:
        self.started_at, self._from = now(), time.monotonic()

    @property
    def seconds(self) -> float:
        """Since then."""
        return round(time.monotonic() - self._from, 3)


def now() -> str:
    """ISO, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def path_of(path: str, rank: int, ranks: int) -> str:
    """Of one rank: ``{rank}`` is replaced, or with several ranks ``-rank7`` put before the suffix.

    Raises:
        InputError: its directory does not exist.
    """
    if "{rank}" in path:
        path = path.replace("{rank}", str(rank))
    elif ranks > 1:
        whole = Path(path)
        path = str(whole.with_name(f"{whole.stem}-rank{rank}{whole.suffix}"))
    if not Path(path).parent.is_dir():
        raise InputError(f"{named(path)}: its directory does not exist: create it first")
    return path


def record(foreseen: Foreseen, *, in_training: InTraining, moments: tuple[MomentPeaks, ...],
           memory_stats: Mapping[str, int], used_bytes: int, out_of_memory: OutOfMemory | None, clock: Clock) -> Record:
    """As it stands now.

    Args:
        used_bytes: the most that was used of the device.
    """
    workload = foreseen.workload
    rank, ranks = loop_keys.ranks()
    job = MeasuredJob(
        measured_on=device.measured_on(), device=device.describe(event_completion() if is_emulated() else None),
        software=device.software(), settings=device.settings(), process_group=_group(ranks), moments=moments,
        out_of_memory=out_of_memory, memory_stats=memory_stats, device_used_bytes=used_bytes,
        nvml_used_bytes=device.nvml_used_bytes(), started_at=clock.started_at, finished_at=now(),
        seconds=clock.seconds)
    return Record(
        schema_version=SCHEMA_VERSION, peakcast_version=VERSION,
        workload=workload.resolved() if isinstance(workload, Workload) else dict(workload), rank=rank,
        rank_chosen_by=RankChoice.LAUNCHER if ranks > 1 else RankChoice.WORKLOAD, job=job,
        command=tuple(getattr(sys, "orig_argv", sys.argv)), snapshot=None, predicted=foreseen.predicted,
        not_predicted=foreseen.not_predicted, in_training=in_training)


def _group(ranks: int) -> str:
    """What stands for the other ranks: they are there, whatever launched them, but in a dry run."""
    if ranks == 1:
        return single_rank.joined()
    return "nccl" if SETTING in os.environ else "launched"


def write(path: str, made: Record) -> None:
    """The whole file or nothing.

    Raises:
        InputError: it cannot be written.
    """
    write_whole(path, (json.dumps(made.to_json(), indent=2) + "\n").encode())
