"""From a measurement's record to its attribution: finds the memory history, and predicts the same rank."""

from __future__ import annotations

import os
from pathlib import Path

from calibrate.attribution.allocations import Side, predicted, recorded
from calibrate.attribution.attribution import Attribution, attribute
from calibrate.records.record import Record
from predictor import snapshot
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.suggestions import named
from predictor.jobs import dispatch
from predictor.workload.workload import Workload


def attribute_record(record: Record, path: str | os.PathLike[str]) -> Attribution:
    """Explain a measurement by what this release predicts of it.

    Args:
        record: of ``peakcast measure --snapshot``.
        path: where the record was read; its snapshot may lie beside it.

    Raises:
        InputError: it has no snapshot, or not its own; or the job cannot be predicted.
    """
    file = find_snapshot(record, path)
    history = read_history(file)
    peak = record.peak("requested_bytes").bytes
    if history.peak_bytes != peak:
        raise InputError(f"{named(file)}: its highest point is {history.peak_bytes:,} bytes and the record's "
                         f"{peak:,}: it is the history of another job")
    workload = workload_of(record, path)
    return attribute(history, predicted(dispatch.prepare(workload).run(workload.capacity)))


def read_history(file: str | os.PathLike[str]) -> Side:
    """The recorded side from a snapshot file.

    Raises:
        InputError: with the file's name in front.
    """
    content = snapshot.read(file)
    try:
        return recorded(content)
    except InputError as error:
        raise InputError(f"{named(file)}: {error}") from None


def find_snapshot(record: Record, path: str | os.PathLike[str]) -> Path:
    """The memory history that belongs to a record: where it was written, or beside the record.

    Raises:
        InputError: none was recorded, or it is nowhere.
    """
    if record.snapshot is None:
        raise InputError(f"{named(path)}: this measurement has no memory history: measure again with "
                         "--snapshot FILE")
    folder, written = Path(path).parent, Path(record.snapshot)
    for place in (written, folder / written, folder / written.name):
        if place.is_file():
            return place
    raise InputError(f"{named(path)}: its memory history {named(record.snapshot)} is gone: put it beside "
                     "the record, or measure again with --snapshot FILE")


def workload_of(record: Record, path: str | os.PathLike[str]) -> Workload:
    """The workload as it ran: its rank, the kernels of its GPU; no profile, which would hide what it explains."""
    workload = Workload.from_mapping(dict(record.workload), source=f"{named(path)}: workload")
    workload = workload.replace(rank=record.rank, profile="none")
    try:
        return workload.replace(gpu=workload.gpu or gpus.find(record.job.device.name).name)
    except InputError:  # a GPU that nobody knows
        return workload
