"""The memory with which a job just survives, looked for around the predicted limit."""

from __future__ import annotations

from typing import Any

from calibrate.measure.measure import measure
from calibrate.records.record import MeasuredOn
from predictor.jobs.dispatch import prepare
from predictor.jobs.survival import PAGE_BYTES
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.workload.workload import Workload

FURTHER = (0, 1, 4, 16, 64, 256)
"""Pages from the predicted limit at which it is looked for."""


def sweep(workload: Workload, device: MeasuredOn = MeasuredOn.EMULATED) -> dict[str, Any]:
    """The predicted limit of PyTorch's share, and the nearest capacities at which the job survived and died."""
    workload = workload.replace(gpu=workload.gpu or "h100-80gb", profile="none")
    predicted = prepare(workload).minimum_capacity() - ASSUMED_RUNTIME_BYTES
    # blocks shared by two streams: the limit holds for whichever completion of events needs more
    both = workload.deepspeed and device is MeasuredOn.EMULATED
    modes = ("immediate", "synchronization") if both else ("immediate",)

    def survives(pages: int) -> bool:
        there = workload.replace(capacity_bytes=predicted + pages * PAGE_BYTES)
        return all(measure(there, device=device, events=events).job.out_of_memory is None for events in modes)

    above = next((pages for pages in FURTHER if survives(pages)), None)
    below = next((-pages for pages in FURTHER[1:] if not survives(-pages)), None)
    return {"measured_on": device.value, "predicted_limit_bytes": predicted,
            "survived_bytes": None if above is None else predicted + above * PAGE_BYTES,
            "died_bytes": None if below is None else predicted + below * PAGE_BYTES}
