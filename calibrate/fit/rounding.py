"""Whether the device's allocator rounds sizes as the predictor's: other roundings are simulated and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calibrate.fit.jobs import MeasuredJob
from predictor.allocator.settings import AllocatorSettings
from predictor.profile.profile import AllocatorFit

DIVISIONS = (0, 2, 4, 8, 16)
MOST_JOBS = 8
CLEARLY = 0.5
"""The error must fall below so much of that without rounding."""
NEGLIGIBLE = 1e-3
"""Relative error that is not worth a setting."""

Play = Callable[[MeasuredJob, int], tuple[int, int]]
"""Allocated and reserved peaks in bytes of a job, simulated with so many divisions (0: none)."""


def fit_rounding(jobs: Sequence[MeasuredJob], play: Play) -> AllocatorFit:
    """The number of divisions between powers of two that explains allocated and reserved peaks best."""
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
    """Jobs that set it themselves say nothing about the device's."""
    return any(AllocatorSettings.parse(job.workload.allocator_conf or "").roundup_power2_divisions)
