"""Whether measurements belong together: of one device and software, explained by this release, on the GPU that was
named."""

from __future__ import annotations

from collections.abc import Iterable

from calibrate.campaign.environment import Here
from calibrate.campaign.rows import Row
from calibrate.measure.device_choice import Where
from calibrate.records.record import Device, MeasuredJob, MeasuredOn
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.suggestions import named, show
from predictor.version import VERSION

DECIDE = ("torch", "cuda", "cudnn", "transformers", "deepspeed")
"""Software that decides what a job allocates; Python and the platform do not."""
CAPACITY_WITHIN = 0.03
"""How far apart two drivers show the memory of one GPU, and more: a product of another size is further off."""
ANOTHER = "name another file with --measurements"


def check_rows(rows: Iterable[Row], where: Where, path: str) -> None:
    """All rows are of this device, of one software, and explained by this release.

    Raises:
        InputError: one is not.
    """
    file, first = named(path), None
    completion = where.events if where.device is MeasuredOn.EMULATED else None
    injected = where.inject.stated() if where.inject else {}
    for row in rows:
        if row.record is None:
            continue
        job = row.record.job
        for what, found, wanted in (
                ("device", job.measured_on.value, where.device.value), ("gpu", row.record.workload["gpu"], where.gpu),
                ("events", job.device.event_completion, completion),
                ("injected", dict(job.device.injected or {}), injected),
                # what a row has beyond the prediction is beyond that of the release that wrote it
                ("peakcast", row.record.peakcast_version, VERSION)):
            if found != wanted:
                raise InputError(f"{file}: was measured with {what} {found}, and this is {wanted}: {ANOTHER}")
        try:
            check_gpu(where.gpu, job.device)
        except InputError as error:
            raise InputError(f"{file}: job {row.id}: {error}, and {ANOTHER}") from None
        first = first or row
        if _identity(job) != _identity(first.record.job):
            raise InputError(f"{file}: the jobs {first.id} and {row.id} ran on different devices or software: "
                             f"{ANOTHER}, and measure all with one")


def check_here(rows: Iterable[Row], here: Here, where: Where, path: str) -> None:
    """This machine's GPU is the one that was named, and it and its software are those of the rows (which
    :func:`check_rows` found to be alike).

    Raises:
        InputError: one is not.
    """
    check_gpu(where.gpu, here.device)
    known = next((row.record.job for row in rows if row.record is not None), None)
    if known is None:
        return
    theirs, ours = _identity(known), _identity(here)
    for what in theirs:
        if theirs[what] != ours[what]:
            raise InputError(f"{named(path)}: was measured with {what} {theirs[what]}, and here is "
                             f"{ours[what]}: {ANOTHER}, and measure all with one")


def check_gpu(gpu: str, device: Device) -> None:
    """The device is the GPU of that name: by its product's name, where that is known, else by its memory.

    Raises:
        InputError: it is another.
    """
    wanted = gpus.find(gpu)
    try:
        found = gpus.find(device.name).name
        another = found != wanted.name and f"which is {found}"
    except InputError:
        another = (abs(device.capacity_bytes / wanted.capacity_bytes - 1) > CAPACITY_WITHIN
                   and f"with {device.capacity_bytes:,} bytes")
    if another:
        raise InputError(f"the GPU is {show(device.name)}, {another}, not {wanted.name} "
                         f"({wanted.capacity_bytes:,} bytes): say after --gpu which it is")


def _identity(of: MeasuredJob | Here) -> dict[str, str | None]:
    """Of a measured job or of what is here: the GPU's product and the software."""
    return {"GPU": of.device.name, **{name: of.software.get(name) for name in DECIDE}}
