"""The GPU and the software that a campaign's jobs find here, asked of a process as theirs would be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from calibrate.campaign.one import Where
from calibrate.measure import ROOT
from calibrate.record import Device, MeasuredOn
from predictor.errors import InputError
from predictor.plain import from_plain, to_plain
from predictor.suggest import show

ANSWER = "PEAKCAST "
"""Begins the line of the process that is the answer; libraries print others."""


@dataclass(frozen=True)
class Here:
    """As in a record of a job that runs here."""

    device: Device
    software: Mapping[str, str | None]


def look(where: Where) -> Here:
    """Start a process that looks; builds the emulated GPU, so that a mistake is told before anything runs.

    Raises:
        InputError: no device, or a process that cannot tell.
    """
    changes: dict[str, str] = {}
    if where.device is MeasuredOn.EMULATED:
        from calibrate import emulator

        changes = emulator.environment(gpu=where.gpu, events=where.events, inject=where.inject, shadow_real_gpu=True)
    path = os.pathsep.join(filter(None, [str(ROOT), changes.get("PYTHONPATH", os.environ.get("PYTHONPATH"))]))
    process = subprocess.run([sys.executable, "-m", "calibrate.campaign.here", where.events], capture_output=True,
                             text=True, env={**os.environ, **changes, "PYTHONPATH": path})
    for line in process.stdout.splitlines():
        if line.startswith(ANSWER):
            found = json.loads(line.removeprefix(ANSWER))
            if "input_error" in found:
                raise InputError(found["input_error"])
            return from_plain(Here, found, "the GPU here")
    last = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
    raise InputError(f"the GPU could not be looked at: {show(last, 300)[1:-1]}")


def main(events: str) -> None:
    """What the process does. Ends as a job does: libraries hang in the interpreter's last rites."""
    from calibrate import device

    try:
        device.require()
        answer = to_plain(Here(device.describe(events), device.software()))
    except InputError as error:
        answer = {"input_error": str(error)}
    print(ANSWER + json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
