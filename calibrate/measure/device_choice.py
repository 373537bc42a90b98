"""The choice of the device that measures jobs."""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.emulator.injection import Injection
from calibrate.records.record import MeasuredOn


@dataclass(frozen=True)
class MeasuringDevice:
    """The device that a campaign measures, with the matching arguments of ``measure``.

    Attributes:
        gpu: name of the GPU, as in a workload.
        device: a real or an emulated GPU.
        events: when events complete on the emulated GPU.
        inject: differences to inject into the emulated GPU.
        snapshots: directory for each job's memory history; None if none is kept.
    """

    gpu: str
    device: MeasuredOn
    events: str = "immediate"
    inject: Injection | None = None
    snapshots: str | None = None
