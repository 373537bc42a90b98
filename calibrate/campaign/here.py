"""The GPU and the software that a campaign's jobs find here, asked of a process as theirs would be."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from calibrate.measure.where import Where
from calibrate.probes import asked
from calibrate.records.record import Device
from predictor.common.plain import from_plain, to_plain


@dataclass(frozen=True)
class Here:
    """As in a record of a job that runs here."""

    device: Device
    software: Mapping[str, str | None]


def look(where: Where) -> Here:
    """Start a process that looks; InputError as :func:`calibrate.probes.asked.ask`."""
    return from_plain(Here, asked.ask("calibrate.campaign.here", where, where.events), "the GPU here")


def _found(events: str) -> dict[str, Any]:
    from calibrate.job import device

    return to_plain(Here(device.describe(events), device.software()))


if __name__ == "__main__":
    asked.answer(partial(_found, sys.argv[1]))
