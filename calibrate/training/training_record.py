"""The record of a training, in the format of ``peakcast measure --json -o``."""

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
from calibrate.training.predictions import RecordedPrediction
from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.suggestions import file_name
from predictor.version import VERSION
from predictor.workload.workload import Workload


class Clock:
    """Start time and elapsed time of a training."""

    def __init__(self) -> None:
        self.started_at, self._from = now(), time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self._from, 3)


def now() -> str:
    """The current time in UTC, in ISO format."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def rank_path(path: str, rank: int, ranks: int) -> str:
    """The record's path for one rank: ``{rank}`` is replaced; else, with several ranks, ``-rank7`` goes before the
    suffix.

    Raises:
        InputError: the directory does not exist.
    """
    if "{rank}" in path:
        path = path.replace("{rank}", str(rank))
    elif ranks > 1:
        file = Path(path)
        path = str(file.with_name(f"{file.stem}-rank{rank}{file.suffix}"))
    if not Path(path).parent.is_dir():
        raise InputError(f"{file_name(path)}: its directory does not exist: create it first")
    return path


def record(recorded: RecordedPrediction, *, in_training: InTraining, moments: tuple[MomentPeaks, ...],
           memory_stats: Mapping[str, int], used_bytes: int, out_of_memory: OutOfMemory | None, clock: Clock) -> Record:
    """The record of the training so far.

    Args:
        used_bytes: the most memory of the device that was in use.
    """
    workload = recorded.workload
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
        command=tuple(getattr(sys, "orig_argv", sys.argv)), snapshot=None, predicted=recorded.predicted,
        not_predicted=recorded.not_predicted, in_training=in_training)


def _group(ranks: int) -> str:
    """The record's ``process_group``. Other ranks are real, whatever launched them, except in a dry run."""
    if ranks == 1:
        return single_rank.joined()
    return "nccl" if SETTING in os.environ else "launched"


def write(path: str, content: Record) -> None:
    """Writes the whole file or nothing.

    Raises:
        InputError: it cannot be written.
    """
    write_whole(path, (json.dumps(content.to_json(), indent=2) + "\n").encode())
