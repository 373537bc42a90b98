"""A campaign's rows as the fit sees them: plain frozen data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calibrate.campaign.rows import Row, Workspace
from calibrate.records.record import Record
from predictor.events.events import Moment
from predictor.workload.workload import Workload

FIT, HOLDOUT, VALIDATION = ROLES = ("fit", "holdout", "validation")
WITH_OTHERS = ("launched", "nccl")
"""Process groups that make communicators on the device (``MeasuredJob.process_group``)."""
OVERALL = ("requested_bytes", "allocated_bytes", "reserved_bytes")


@dataclass(frozen=True)
class MeasuredJob:
    """One job that ran to its end, with its peaks in bytes.

    Attributes:
        workload: as it ran, its profile left out.
        predicted: whether the predictor knows its engine; the runtime alone can be fitted on the others.
        moments: largest requested bytes by step and moment.
        runtime_bytes: device memory that PyTorch's allocator does not hold, at the end; None where nothing tells.
        communicates: whether a process group made communicators on the device.
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
    """The jobs of a campaign that ran to their end, in order; failed ones teach nothing."""
    return [_job(row, row.record) for row in rows
            if row.failed is None and row.record is not None and row.record.job.out_of_memory is None]


def _job(row: Row, record: Record) -> MeasuredJob:
    job = record.job
    return MeasuredJob(
        id=row.id, role=row.role, group=row.group, workload=row.workload().replace(profile="none"),
        predicted=record.predicted is not None,
        moments={(peak.step, peak.moment): peak.requested_bytes for peak in job.moments},
        **{name: record.peak(name).bytes for name in OVERALL},
        device_bytes=max(job.device_used_bytes, job.nvml_used_bytes or 0), runtime_bytes=_runtime(record),
        communicates=job.process_group in WITH_OTHERS, completion=job.device.event_completion or "immediate",
        extras=row.workspaces)


def _runtime(record: Record) -> int | None:
    """What NVML shows at the end, less the segments that PyTorch holds then."""
    used, held = record.job.nvml_used_bytes, record.job.memory_stats.get("reserved_bytes.all.current")
    return None if used is None or held is None else max(0, used - held)
