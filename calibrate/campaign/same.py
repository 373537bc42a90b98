"""Whether measurements belong together: of one device and software, explained by this release, on the GPU that was
named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calibrate.campaign.one import Where
from calibrate.campaign.rows import Row
from calibrate.measure import ROOT
from calibrate.record import Device, MeasuredOn
from predictor import gpus
from predictor.errors import InputError
from predictor.plain import from_plain
from predictor.suggest import show
from predictor.version import VERSION

DECIDE = ("torch", "cuda", "cudnn", "transformers", "deepspeed")
"""Software that decides what a job allocates; Python and the platform do not."""
CAPACITY_WITHIN = 0.03
"""How far apart two drivers show the memory of one GPU, and more: a product of another size is further off."""
ANOTHER = "name another file with --measurements"


@dataclass(frozen=True)
class Here:
    """The GPU and the software that jobs find where this runs."""

    device: Device
    software: Mapping[str, str | None]


_LOOK = ("import json, sys; from calibrate import device; from predictor.errors import InputError; "
         "from predictor.plain import to_plain\n"
         "try: device.require(); found = {'device': to_plain(device.describe(sys.argv[1])),"
         " 'software': device.software()}\n"
         "except InputError as error: found = {'input_error': str(error)}\n"
         "print('FOUND' + json.dumps(found), flush=True)\n"
         "import os; os._exit(0)")  # as a job ends: libraries hang in their last rites


def look(where: Where) -> Here:
    """Ask a process as a job's would be; builds the emulated GPU, so that a mistake is told before anything runs.

    Raises:
        InputError: no device, or a process that cannot tell.
    """
    changes: dict[str, str] = {}
    if where.device is MeasuredOn.EMULATED:
        from calibrate import emulator

        changes = emulator.environment(gpu=where.gpu, events=where.events, inject=where.inject, shadow_real_gpu=True)
    path = os.pathsep.join(filter(None, [str(ROOT), changes.get("PYTHONPATH", os.environ.get("PYTHONPATH"))]))
    process = subprocess.run([sys.executable, "-c", _LOOK, where.events], capture_output=True, text=True,
                             env={**os.environ, **changes, "PYTHONPATH": path})
    for line in process.stdout.splitlines():
        if line.startswith("FOUND"):
            found = json.loads(line.removeprefix("FOUND"))
            if "input_error" in found:
                raise InputError(found["input_error"])
            return from_plain(Here, found, "the device")
    last = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
    raise InputError(f"the GPU could not be looked at: {show(last, 300)[1:-1]}")


def check_rows(rows: Iterable[Row], where: Where, path: str) -> None:
    """All rows are of this device, of one software, and explained by this release.

    Raises:
        InputError: one is not.
    """
    named, first = show(path, 200)[1:-1], None
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
                raise InputError(f"{named}: was measured with {what} {found}, and this is {wanted}: {ANOTHER}")
        try:
            check_gpu(where.gpu, job.device)
        except InputError as error:
            raise InputError(f"{named}: job {row.id}: {error}, and {ANOTHER}") from None
        first = first or row
        if _identity(job) != _identity(first.record.job):
            raise InputError(f"{named}: the jobs {first.id} and {row.id} ran on different devices or software: "
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
            raise InputError(f"{show(path, 200)[1:-1]}: was measured with {what} {theirs[what]}, and here is "
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


def _identity(of: object) -> dict[str, str | None]:
    """Of a measured job or of what is here: the GPU's product and the software."""
    return {"GPU": of.device.name, **{name: of.software.get(name) for name in DECIDE}}
