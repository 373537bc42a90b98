"""Reads the GPU and the software versions that a campaign's jobs have on this machine, in a process like theirs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from calibrate.measure.device_choice import MeasuringDevice
from calibrate.probes import device_query
from calibrate.records.record import Device
from predictor.common.json_dataclasses import from_plain, to_plain


@dataclass(frozen=True)
class JobEnvironment:
    """The device and software that the record of a job on this machine would have."""

    device: Device
    software: Mapping[str, str | None]


def read_environment(where: MeasuringDevice) -> JobEnvironment:
    """Reads them in a new process.

    Raises:
        InputError: as :func:`calibrate.probes.device_query.run_module`.
    """
    document = device_query.run_module("calibrate.campaign.environment", where, where.events)
    return from_plain(JobEnvironment, document, "the GPU here")


def _describe(events: str) -> dict[str, Any]:
    from calibrate.job import device

    return to_plain(JobEnvironment(device.describe(events), device.software()))


if __name__ == "__main__":
    device_query.print_answer(partial(_describe, sys.argv[1]))
