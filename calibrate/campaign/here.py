"""The GPU and the software that a campaign's jobs find here, asked of a process as theirs would be."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from calibrate import asked
from calibrate.campaign.one import Where
from calibrate.record import Device
from predictor.plain import from_plain, to_plain


@dataclass(frozen=True)
class Here:
    """As in a record of a job that runs here."""

    device: Device
    software: Mapping[str, str | None]


def look(where: Where) -> Here:
    """Start a process that looks; InputError as :func:`calibrate.asked.ask`."""
    return from_plain(Here, asked.ask("calibrate.campaign.here", where, where.events), "the GPU here")


def _found(events: str) -> dict[str, Any]:
    from calibrate import device

    return to_plain(Here(device.describe(events), device.software()))


if __name__ == "__main__":
    asked.answer(partial(_found, sys.argv[1]))
