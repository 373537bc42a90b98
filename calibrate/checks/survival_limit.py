"""Searches for the smallest capacity at which a job survives, around the predicted limit."""

from __future__ import annotations

from typing import Any

from calibrate.measure.measure import measure
from calibrate.records.record import MeasuredOn
from predictor.jobs.dispatch import prepare
from predictor.jobs.survival import PAGE_BYTES
from predictor.workload.workload import Workload

FURTHER = (0, 1, 4, 16, 64, 256)
"""Distances from the predicted limit that are tried, in pages of ``PAGE_BYTES``."""


def sweep(workload: Workload, device: MeasuredOn = MeasuredOn.EMULATED) -> dict[str, Any]:
    """The predicted limit of PyTorch's memory, and the nearest capacities at which the job survived and died.

    All are bytes without the assumed runtime; ``survived_bytes`` or ``died_bytes`` is None if no tried capacity did.
    """
    workload = workload.replace(gpu=workload.gpu or "h100-80gb", profile="none")
    job = prepare(workload)
    predicted = job.minimum_capacity() - job.margin.runtime_high
    # With blocks that two streams share, the limit is that of the event completion which needs more memory.
    both = workload.deepspeed and device is MeasuredOn.EMULATED
    modes = ("immediate", "synchronization") if both else ("immediate",)

    def survives(pages: int) -> bool:
        limited = workload.replace(capacity_bytes=predicted + pages * PAGE_BYTES)
        return all(measure(limited, device=device, events=events).job.out_of_memory is None for events in modes)

    above = next((pages for pages in FURTHER if survives(pages)), None)
    below = next((-pages for pages in FURTHER[1:] if not survives(-pages)), None)
    return {"measured_on": device.value, "predicted_limit_bytes": predicted,
            "survived_bytes": None if above is None else predicted + above * PAGE_BYTES,
            "died_bytes": None if below is None else predicted + below * PAGE_BYTES}
