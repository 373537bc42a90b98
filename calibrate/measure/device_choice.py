"""The device that jobs are measured on."""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.emulator.injection import Injection
from calibrate.records.record import MeasuredOn


@dataclass(frozen=True)
class Where:
    """The device that a campaign measures; ``gpu`` as in a workload. What ``measure`` takes besides, and the directory
    that keeps each job's memory history (None: none is kept)."""

    gpu: str
    device: MeasuredOn
    events: str = "immediate"
    inject: Injection | None = None
    snapshots: str | None = None
