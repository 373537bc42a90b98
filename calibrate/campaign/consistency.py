"""Checks that all measurements of a campaign come from the named GPU, one software, and this release of peakcast."""

from __future__ import annotations

from collections.abc import Iterable

from calibrate.campaign.environment import JobEnvironment
from calibrate.campaign.rows import Row
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.records.record import Device, MeasuredJob, MeasuredOn
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name, quoted
from predictor.version import VERSION

DECISIVE_SOFTWARE = ("torch", "cuda", "cudnn", "transformers", "deepspeed")
"""Software whose version decides what a job allocates; Python's and the platform's do not."""
CAPACITY_WITHIN = 0.03
"""Largest relative difference of two capacities of the same GPU. Drivers show a little more or less of it; products
with another amount of memory differ by more."""
ADVICE = "name another file with --measurements"


def check_rows(rows: Iterable[Row], where: MeasuringDevice, path: str) -> None:
    """Checks that all rows come from this device, from one software, and from this release of peakcast.

    Raises:
        InputError: a row comes from another device, software or release.
    """
    file = file_name(path)
    first: Row | None = None
    completion = where.events if where.device is MeasuredOn.EMULATED else None
    injected = where.inject.stated() if where.inject else {}
    for row in rows:
        if row.record is None:
            continue
        job = row.record.job
        for name, measured, expected in (
                ("device", job.measured_on.value, where.device.value), ("gpu", row.record.workload["gpu"], where.gpu),
                ("events", job.device.event_completion, completion),
                ("injected", dict(job.device.injected or {}), injected),
                # a row's differences from the prediction are those from the prediction of the release that wrote it
                ("peakcast", row.record.peakcast_version, VERSION)):
            if measured != expected:
                raise InputError(f"{file}: was measured with {name} {measured}, and this is {expected}: {ADVICE}")
        try:
            check_gpu(where.gpu, job.device)
        except InputError as error:
            raise InputError(f"{file}: job {row.id}: {error}, and {ADVICE}") from None
        first = first or row
        assert first.record is not None  # rows without a record were skipped
        if _identity(job) != _identity(first.record.job):
            raise InputError(f"{file}: the jobs {first.id} and {row.id} ran on different devices or software: "
                             f"{ADVICE}, and measure all with one")


def check_here(rows: Iterable[Row], here: JobEnvironment, where: MeasuringDevice, path: str) -> None:
    """Checks that this machine has the named GPU, and the GPU and software of the rows.

    Args:
        rows: all alike, as :func:`check_rows` has checked.

    Raises:
        InputError: the GPU or the software is another.
    """
    check_gpu(where.gpu, here.device)
    measured = next((row.record.job for row in rows if row.record is not None), None)
    if measured is None:
        return
    theirs, ours = _identity(measured), _identity(here)
    for name in theirs:
        if theirs[name] != ours[name]:
            raise InputError(f"{file_name(path)}: was measured with {name} {theirs[name]}, and here is "
                             f"{ours[name]}: {ADVICE}, and measure all with one")


def check_gpu(gpu: str, device: Device) -> None:
    """Checks that the device is the named GPU: by its product name if peakcast knows it, otherwise by its capacity.

    Raises:
        InputError: it is another GPU.
    """
    expected = gpus.find(gpu)
    try:
        name = gpus.find(device.name).name
        difference = f"which is {name}" if name != expected.name else ""
    except InputError:
        deviation = abs(device.capacity_bytes / expected.capacity_bytes - 1)
        difference = f"with {device.capacity_bytes:,} bytes" if deviation > CAPACITY_WITHIN else ""
    if difference:
        raise InputError(f"the GPU is {quoted(device.name)}, {difference}, not {expected.name} "
                         f"({expected.capacity_bytes:,} bytes): name it with --gpu")


def _identity(source: MeasuredJob | JobEnvironment) -> dict[str, str | None]:
    """The product name of the GPU and the versions of the decisive software."""
    return {"GPU": source.device.name, **{name: source.software.get(name) for name in DECISIVE_SOFTWARE}}
