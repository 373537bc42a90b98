"""Turns a campaign's rows into the plain data that the fit uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calibrate.campaign.rows import Row, Workspace
from calibrate.records.record import Record
from predictor.events.events import Moment
from predictor.workload.workload import Workload

FIT, HOLDOUT, VALIDATION = ROLES = ("fit", "holdout", "validation")
WITH_OTHERS = ("launched", "nccl")
"""Process groups that create communicators on the device (``MeasuredJob.process_group`` of a record)."""
OVERALL = ("requested_bytes", "allocated_bytes", "reserved_bytes")


@dataclass(frozen=True)
class MeasuredJob:
    """One job that ran to its end, with its peaks in bytes.

    Attributes:
        workload: the workload that ran, without a profile.
        predicted: whether the job has a prediction. From other jobs, only the runtime's memory is fitted.
        moments: largest requested bytes by step and moment.
        runtime_bytes: device memory outside PyTorch's allocator at the end; None without NVML.
        communicates: whether a process group created communicators on the device.
        completion: when events complete on an emulated device.
    """

    id: str
    role: str
    group: str
    workload: Workload
    predicted: bool
    moments: Mapping[tuple[int, Moment], int]
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    runtime_bytes: int | None
    communicates: bool
    completion: str
    extras: tuple[Workspace, ...]


def read(rows: Iterable[Row]) -> list[MeasuredJob]:
    """The jobs of a campaign that ran to their end, in order."""
    return [_job(row, row.record) for row in rows
            if row.failed is None and row.record is not None and row.record.job.out_of_memory is None]


def _job(row: Row, record: Record) -> MeasuredJob:
    job = record.job
    return MeasuredJob(
        id=row.id, role=row.role, group=row.group, workload=row.workload().replace(profile="none"),
        predicted=record.predicted is not None,
        moments={(peak.step, peak.moment): peak.requested_bytes for peak in job.moments},
        **{name: record.peak(name).bytes for name in OVERALL},
        device_bytes=job.device_used_bytes, runtime_bytes=_runtime(record),
        communicates=job.process_group in WITH_OTHERS, completion=job.device.event_completion or "immediate",
        extras=row.workspaces)


def _runtime(record: Record) -> int | None:
    """The most used memory of the device (cudaMemGetInfo) minus PyTorch's segments; None if some were given back, since
    the two are then not of the same time."""
    stats = record.job.memory_stats
    most, held = (stats.get(f"reserved_bytes.all.{when}") for when in ("peak", "current"))
    return None if most is None or most != held else max(0, record.job.device_used_bytes - most)
