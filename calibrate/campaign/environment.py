"""The GPU and the software that a campaign's jobs find here, asked of a process as theirs would be."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from calibrate.measure.device_choice import Where
from calibrate.probes import device_query
from calibrate.records.record import Device
from predictor.common.json_dataclasses import from_plain, to_plain


@dataclass(frozen=True)
class Here:
    """As in a record of a job that runs here."""

    device: Device
    software: Mapping[str, str | None]


def look(where: Where) -> Here:
    """Start a process that looks; InputError as :func:`calibrate.probes.device_query.ask`."""
    return from_plain(Here, device_query.ask("calibrate.campaign.environment", where, where.events), "the GPU here")


def _found(events: str) -> dict[str, Any]:
    from calibrate.job import device

    return to_plain(Here(device.describe(events), device.software()))


if __name__ == "__main__":
    device_query.answer(partial(_found, sys.argv[1]))
