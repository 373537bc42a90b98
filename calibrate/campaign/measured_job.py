"""Measures one job of a campaign, explains it allocation by allocation, and returns its row."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from calibrate.attribution import Attribution, attribute, from_run, from_snapshot
from calibrate.campaign import design
from calibrate.campaign.design import Job
from calibrate.campaign.rows import SKIPPED, Row, Unexplained, Workspace
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.measure.measure import measure
from calibrate.records.record import Record
from predictor import snapshot
from predictor.common.errors import InputError
from predictor.jobs import dispatch, training_job
from predictor.version import VERSION
from predictor.workload.workload import Workload


def row_of(job: Job, where: MeasuringDevice) -> Row:
    """Runs a job. A failure becomes a row too, so that the other jobs go on."""
    row = Row(job.id, job.role, job.group, dict(job.keys))
    try:
        return _measured(row, design.workload(job.keys, gpu=where.gpu, profile="none"), where)
    except InputError as error:
        return replace(row, failed=str(error))
    except Exception as error:  # a bug, or a host without memory or disk
        return replace(row, failed=f"{type(error).__name__}: {' '.join(str(error).split())}")


def _measured(row: Row, workload: Workload, where: MeasuringDevice) -> Row:
    prepared = _prepared(workload)
    if prepared is not None:
        outcome = prepared.judge()
        if outcome.verdict == "does_not_fit":
            needed = outcome.simulation.peak_reserved_bytes
            return replace(row, failed=f"{SKIPPED}needs {needed:,} bytes, the device has {workload.capacity:,}")
    with tempfile.TemporaryDirectory(prefix="peakcast-") as directory:
        history = str(Path(directory) / "history.pickle")
        record = measure(workload, device=where.device, snapshot=history, events=where.events, inject=where.inject)
        kept = where.snapshots and _keep(history, Path(where.snapshots), row.id)
        # the model by its name, wherever its file is
        named_record = replace(record, workload={**record.workload, "model": row.job["model"]}, snapshot=kept)
        row = replace(row, record=named_record, failed=_out_of_memory(record))
        if record.predicted is None:
            return row
        return _explained_by(row, history, workload.replace(rank=record.rank))


def explained_again(row: Row, directory: Path) -> Row:
    """The row of an earlier release, with the differences between its kept history and this release's prediction.

    Raises:
        InputError: the history is not in the directory, cannot be read, or the job has no prediction any more.
    """
    record = row.record
    if record is None or record.predicted is None:
        return row
    if record.snapshot is None:
        raise InputError(f"job {row.id} was measured without --snapshots: there is no memory history to explain")
    row = replace(row, record=replace(record, peakcast_version=VERSION))
    return _explained_by(row, directory / record.snapshot, row.workload().replace(profile="none"))


def _explained_by(row: Row, history: str | Path, workload: Workload) -> Row:
    """The row with the differences between a history and the prediction of its workload."""
    return explained(row, attribute(from_snapshot(snapshot.read(history)),
                                    from_run(dispatch.prepare(workload).run(workload.capacity))))


def _keep(history: str, directory: Path, name: str) -> str:
    """Compresses the history into the directory, under the job's id, and returns the name of the file."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = directory / f"{name}.pickle.gz"
    part = kept.with_suffix(".part")
    with open(history, "rb") as source, gzip.open(part, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)
    part.replace(kept)
    return kept.name


def _prepared(workload: Workload) -> training_job.Job | None:
    try:
        return dispatch.prepare(workload)
    except InputError:  # an engine without a prediction; measuring reports any mistake again
        return None


def _out_of_memory(record: Record) -> str | None:
    end = record.job.out_of_memory
    return f"out of memory in {end.moment.value} of step {end.step}" if end is not None else None


def explained(row: Row, attribution: Attribution) -> Row:
    """The row with the differences between its recorded and its predicted allocations."""
    calls = Counter((extra.operator, extra.moment.value, extra.result_bytes, extra.bytes, extra.grows)
                    for extra in attribution.extras())
    peak = attribution.at_peak()
    items: dict[tuple[str, str, str], list[int]] = {}
    for item in peak.items:
        total = items.setdefault((item.why.value, item.operator, item.moment.value), [0, 0, 0])
        for index, value in enumerate((1, item.measured_bytes, item.predicted_bytes)):
            total[index] += value
    return replace(
        row, unexplained_bytes=-peak.difference_bytes,
        workspaces=tuple(Workspace(operator, moment, result_bytes, size, count, grows)
                         for (operator, moment, result_bytes, size, grows), count in sorted(calls.items())),
        unexplained_items=tuple(Unexplained(*key, *total) for key, total in sorted(items.items())))
