"""Finds the rounding of sizes in the device's allocator: simulates each possible one and compares the peaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calibrate.fit.jobs import MeasuredJob
from predictor.allocator.settings import AllocatorSettings
from predictor.profile.calibration import AllocatorFit

DIVISIONS = (0, 2, 4, 8, 16)
MOST_JOBS = 8
CLEARLY = 0.5
"""Rounding must reduce the error to less than this part of the error without rounding."""
NEGLIGIBLE = 1e-3
"""Rounding must reduce the relative error by more than this."""

Play = Callable[[MeasuredJob, int], tuple[int, int]]
"""Simulates a job with a number of divisions (0: no rounding): its allocated and reserved peaks in bytes."""


def fit_rounding(jobs: Sequence[MeasuredJob], play: Play) -> AllocatorFit:
    """The number of divisions between powers of two with which simulated peaks are closest to the measured ones."""
    free = [job for job in jobs if not _own_rounding(job)]
    chosen = [free[i] for i in np.unique(np.linspace(0, len(free) - 1, MOST_JOBS).astype(int))] if free else []
    if not chosen:
        return AllocatorFit(0, 0)
    measured = np.log([(job.allocated_bytes, job.reserved_bytes) for job in chosen])
    errors = {}
    for divisions in DIVISIONS:
        errors[divisions] = float(np.abs(np.log([play(job, divisions) for job in chosen]) - measured).mean())
    best = min(errors, key=errors.__getitem__)
    if best and errors[best] < CLEARLY * errors[0] and errors[0] - errors[best] > NEGLIGIBLE:
        return AllocatorFit(best, len(chosen))
    return AllocatorFit(0, len(chosen))


def _own_rounding(job: MeasuredJob) -> bool:
    """Whether the job sets its own rounding, and so does not show the device's."""
    return any(AllocatorSettings.parse(job.workload.allocator_conf or "").roundup_power2_divisions)
