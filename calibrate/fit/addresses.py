"""Finds in which order the driver gives addresses to segments: simulates the jobs with each and compares the peaks.

PyTorch's allocator takes the free block that is smallest and, of equal ones, has the lowest address (get_free_block,
c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11). So the driver decides between equal blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calibrate.fit.jobs import MeasuredJob
from predictor.allocator.constants import DOWNWARD_STEP

STEPS = (0, DOWNWARD_STEP)
"""The steps that have been seen, in bytes."""
CLEARLY = 0.5
"""Another order than the emulated GPU's must reduce the error to less than this part."""

Play = Callable[[MeasuredJob, int], tuple[int, int]]
"""Simulates a job with a step of addresses: its allocated and reserved peaks in bytes."""


def fit_address_step(jobs: Sequence[MeasuredJob], play: Play) -> int:
    """The step with which simulated peaks are closest to the measured ones; 0 if no other is clearly closer."""
    errors = {step: sum(_error(job, play(job, step)) for job in jobs) for step in STEPS}
    best = min(errors, key=errors.__getitem__)
    return best if errors[best] < CLEARLY * errors[0] else 0


def _error(job: MeasuredJob, simulated: tuple[int, int]) -> float:
    """Relative error of the two peaks together."""
    measured = job.allocated_bytes, job.reserved_bytes
    return sum(abs(found / known - 1) for found, known in zip(simulated, measured))
