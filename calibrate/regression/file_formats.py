"""File formats of measurements (whole records, campaign rows, compact rows), each read as :class:`Case`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row
from calibrate.fit.jobs import WITH_OTHERS
from calibrate.records.record import SCHEMA_VERSION, MeasuredOn, Record
from calibrate.regression import compact
from calibrate.regression.cases import COUNTERS, Case, Cause
from predictor.allocator.completion import launches_until_complete
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.json_dataclasses import from_plain
from predictor.common.suggestions import quoted, version_text
from predictor.events.events import Moment
from predictor.workload.workload import Workload

OVERALL = COUNTERS[:3]
"""Counters of PyTorch's allocator, which every format has."""
CALIBRATION = "a profile, not a measurement: give it as --profile"
MOST_BYTES = 1 << 50
"""Upper limit of a plausible peak in bytes: no GPU has as much memory."""


def read(document: Any, file: str, line: int) -> list[Case]:
    """The cases of one JSON document; a row of the check ``verdicts`` has two.

    Raises:
        InputError: the document is not a usable measurement. The message does not name the file.
    """
    if not isinstance(document, dict):
        raise InputError("not a mapping: not a measurement of peakcast")
    for keys, read_format in FORMATS:
        if keys <= document.keys():
            return read_format(document, file, line)
    if "coefficients" in document:
        raise InputError(CALIBRATION)
    if {"groups", "cases", "skipped"} <= document.keys():
        raise InputError("a report of peakcast report, not a measurement")
    listed = f"the keys {quoted(', '.join(map(str, document)), 60)}" if document else "no keys"
    raise InputError(f"in none of the forms that this release reads: it has {listed}")


# --- a record of peakcast measure -------------------------------------------------------------------


def _record(document: dict[str, Any], file: str, line: int) -> list[Case]:
    _check_version(document)
    document = dict(document)
    for counter in OVERALL:  # copies of fields in "job", for people who read the file
        for part in ("bytes", "at"):
            document.pop(f"peak_{counter}_{part}", None)
    record = from_plain(Record, document, "the record")
    return [_case(record, Workload.from_mapping(dict(record.workload)), file, line, snapshot=record.snapshot)]


def _check_version(record: Mapping[str, Any]) -> None:
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"schema_version is {version_text(version)}, and this release reads {SCHEMA_VERSION}: measure "
                         "again")


def _case(record: Record, workload: Workload, file: str, line: int, **more: Any) -> Case:
    job, device = record.job, record.job.device
    if device.injected:
        raise InputError("measured on an emulated GPU that was changed on purpose (injected): no measurement of a "
                         f"{device.name}")
    record.check_shapes()
    if not job.moments:
        raise InputError("it has no moments: nothing was measured")
    gpu = _gpu(workload.gpu or device.name)
    workload = workload.replace(rank=record.rank, profile="none", gpu=gpu.name if gpu else None)
    # A device of the same name may have slightly more or less memory than the table of GPUs has.
    if workload.capacity_bytes is None and workload.capacity != device.capacity_bytes:
        workload = workload.replace(capacity_bytes=device.capacity_bytes)
    peak = record.peak("requested_bytes")
    on_device = job.measured_on is MeasuredOn.DEVICE
    if on_device and device.event_completion is not None:
        raise InputError(f"event_completion is {quoted(device.event_completion)}, and a real GPU has none: edited, or "
                         "damaged")
    launches_until_complete(device.event_completion or "immediate", "event_completion")
    sizes = {**{counter: record.peak(f"{counter}_bytes").bytes for counter in OVERALL},
             "device": job.device_used_bytes if on_device else None}
    survived = job.out_of_memory is None
    return Case(
        workload=workload, measured_on=job.measured_on.value, gpu=gpu.name if gpu else device.name,
        software=dict(job.software), date=job.finished_at[:10], completion=device.event_completion or "immediate",
        communicates=job.process_group in WITH_OTHERS, survived=survived, peaks=_peaks(sizes, survived),
        moment=peak.moment.value, step=peak.step, file=file, line=line, **more)


def _peaks(sizes: Mapping[str, Any], survived: bool = True) -> Mapping[str, int | None]:
    """Checks that the peaks are possible, and returns them.

    Allocated bytes may be fewer than requested: only requested bytes count a freed block that waits for another stream
    (``free`` and ``free_block`` of c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11).

    Raises:
        InputError: a peak is not a number of bytes, or reserved bytes are fewer than allocated or requested ones.
    """
    for counter, size in sizes.items():
        if size is not None:
            _bytes(f"{counter}_bytes", size, int(survived))
    for counter in ("allocated", "requested"):
        if sizes["reserved"] < sizes[counter]:
            raise InputError(f"reserved_bytes, {sizes['reserved']:,}, are fewer than {counter}_bytes, "
                             f"{sizes[counter]:,}: blocks lie in what is reserved: edited, or damaged")
    return sizes


def _bytes(name: str, size: Any, least: int = 1) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or not least <= size <= MOST_BYTES:
        raise InputError(f"{name} must be bytes, not {quoted(size)}: another schema, or damaged")
    return size


def _gpu(name: str) -> gpus.Gpu | None:
    try:
        return gpus.find(name)
    except InputError:
        return None


# --- a row of a campaign ----------------------------------------------------------------------------


def _row(document: dict[str, Any], file: str, line: int) -> list[Case]:
    if isinstance(document.get("record"), dict):
        _check_version(document["record"])
    row = from_plain(Row, document, "the row")
    own = Job(row.job, row.role, row.group).id
    if row.id != own:
        raise InputError(f"its id is {quoted(row.id)}, and its job's is {quoted(own)}: edited, or damaged")
    if row.record is None:
        raise InputError(f"nothing was measured: {row.failed}")
    causes = tuple(Cause(**vars(item)) for item in row.unexplained_items)
    return [_case(row.record, row.workload(), file, line, group=row.group, causes=causes)]


# --- rows of checks ---------------------------------------------------------------------------------


def _compact(document: dict[str, Any], file: str, line: int) -> list[Case]:
    compact.check_version(document)
    workload, completion = compact.workload_of(_mapping(document, "job"))
    sizes = _peaks({counter: _bytes(f"{counter}_bytes", document.get(f"{counter}_bytes")) for counter in OVERALL})
    return [_small(document, workload.replace(rank=_rank(document, workload)), completion, file, line, survived=True,
                   peaks={**sizes, "device": None}, moment=Moment(_text(document, "moment", tuple(Moment))).value)]


def _verdict(document: dict[str, Any], file: str, line: int) -> list[Case]:
    """Two cases: a capacity at which a job survived, and one at which it died. With blocks that two streams share, both
    hold for either completion of CUDA events.
    """
    compact.check_version(document)
    survived, died = (document[key] and _bytes(key, document[key]) for key in ("survived_bytes", "died_bytes"))
    if survived and died and died >= survived:
        raise InputError(f"died_bytes, {died:,}, are no fewer than survived_bytes, {survived:,}: edited, or damaged")
    cases = []
    for key, survived in (("survived_bytes", True), ("died_bytes", False)):
        if document[key] is not None:
            workload, completion = compact.workload_of(_mapping(document, "job"), _bytes(key, document[key]))
            cases.append(_small(document, workload, completion, file, line, survived=survived,
                                peaks=dict.fromkeys(COUNTERS), moment=None))
    if not cases:
        raise InputError("nothing was measured: neither where the job survived nor where it died")
    return cases


def _small(document: dict[str, Any], workload: Workload, completion: str, file: str, line: int, **more: Any) -> Case:
    software = document.get("software", {})
    if isinstance(software, dict) and not all(isinstance(version, str | None) for version in software.values()):
        raise InputError(f"software must be a mapping to versions, not {quoted(software)}: another schema, or damaged")
    assert workload.gpu is not None  # compact.workload_of sets one
    return Case(
        workload=workload, measured_on=MeasuredOn(_text(document, "measured_on", tuple(MeasuredOn))).value,
        gpu=workload.gpu, software=dict(software) if isinstance(software, dict) else {},
        date=str(document.get("date", "")), completion=completion, communicates=False, step=None, file=file, line=line,
        group=str(document.get("group", "")), **more)


def _rank(document: dict[str, Any], workload: Workload) -> int | str:
    return document["rank"] if isinstance(document.get("rank"), int) else workload.rank


def _mapping(document: dict[str, Any], key: str) -> Mapping[str, Any]:
    if not isinstance(document[key], dict):
        raise InputError(f"{key} must be a mapping, not {quoted(document[key])}: another schema, or damaged")
    return document[key]


def _text(document: dict[str, Any], key: str, known: tuple) -> str:
    values = [member.value for member in known]
    if document.get(key) not in values:
        raise InputError(f"{key} must be one of {', '.join(values)}, not {quoted(document.get(key))}: another schema, "
                         "or damaged")
    return document[key]


FORMATS: tuple[tuple[set[str], Callable[[dict[str, Any], str, int], list[Case]]], ...] = (
    ({"schema_version", "workload", "job"}, _record),
    ({"id", "role", "job"}, _row),
    ({"job", "requested_bytes"}, _compact),
    ({"job", "survived_bytes", "died_bytes"}, _verdict),
)
"""Keys that identify a format, and the function that reads it. The first match is used."""
