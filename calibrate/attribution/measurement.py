"""Makes the attribution of a measurement's record: finds its memory history and predicts the same rank."""

from __future__ import annotations

import os
from pathlib import Path

from calibrate.attribution.allocations import JobAllocations, from_run, from_snapshot
from calibrate.attribution.attribution import Attribution, attribute
from calibrate.records.record import Record
from predictor import snapshot
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name
from predictor.jobs import dispatch
from predictor.workload.workload import Workload


def attribute_record(record: Record, path: str | os.PathLike[str]) -> Attribution:
    """Explains a measurement by this release's prediction.

    Args:
        record: a record of ``peakcast measure --snapshot``.
        path: path of the record; its snapshot may be beside it.

    Raises:
        InputError: the record has no snapshot or another job's, or the job cannot be predicted.
    """
    file = find_snapshot(record, path)
    history = read_history(file)
    peak = record.peak("requested_bytes").bytes
    if history.peak_bytes != peak:
        raise InputError(f"{file_name(file)}: its highest point is {history.peak_bytes:,} bytes and the record's "
                         f"{peak:,}: it is the history of another job")
    workload = workload_of(record, path)
    return attribute(history, from_run(dispatch.prepare(workload).run(workload.capacity)))


def read_history(file: str | os.PathLike[str]) -> JobAllocations:
    """The recorded side from a snapshot file.

    Raises:
        InputError: the file cannot be used; the message begins with its name.
    """
    content = snapshot.read(file)
    try:
        return from_snapshot(content)
    except InputError as error:
        raise InputError(f"{file_name(file)}: {error}") from None


def find_snapshot(record: Record, path: str | os.PathLike[str]) -> Path:
    """The memory history of a record, at its recorded path or beside the record.

    Raises:
        InputError: no history was recorded, or the file is missing.
    """
    if record.snapshot is None:
        raise InputError(f"{file_name(path)}: this measurement has no memory history: measure again with "
                         "--snapshot FILE")
    folder, written = Path(path).parent, Path(record.snapshot)
    for place in (written, folder / written, folder / written.name):
        if place.is_file():
            return place
    raise InputError(f"{file_name(path)}: its memory history {file_name(record.snapshot)} is gone: put it beside "
                     "the record, or measure again with --snapshot FILE")


def workload_of(record: Record, path: str | os.PathLike[str]) -> Workload:
    """The workload as it ran, with its rank and its GPU's kernels, and without a profile, which would hide differences.
    """
    workload = Workload.from_mapping(dict(record.workload), source=f"{file_name(path)}: workload")
    workload = workload.replace(rank=record.rank, profile="none")
    try:
        return workload.replace(gpu=workload.gpu or gpus.find(record.job.device.name).name)
    except InputError:  # an unknown GPU
        return workload
