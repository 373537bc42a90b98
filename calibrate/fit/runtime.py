"""Fits the device memory outside PyTorch's allocator: CUDA context, libraries, communicators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrate.fit.jobs import MeasuredJob
from calibrate.fit.regression import TO_DEVIATION
from predictor.profile.calibration import FURTHER_STAGES, Runtime
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES, SURE

NOTHING_BYTES = 16 << 20
"""Less than a CUDA context takes: then the device does not show the runtime's memory."""
SURELY = 0.9
"""Fraction of jobs that the interval around the fitted memory contains, at least."""
SOURCE = ("peakcast's assumption for the CUDA context and libraries, not measured. PyTorch's developers give about "
          "300 MB for a context since CUDA 11.7, which loads kernels when they are needed, and above 1000 MB before "
          "(github.com/pytorch/pytorch/issues/107667)")


def fit_runtime(jobs: Sequence[MeasuredJob], measured_on: str) -> Runtime:
    """The median over jobs without communicators, plus the memory of communicators by number of ranks.

    What jobs under :data:`FURTHER_STAGES` have more is the difference of medians, where there are others to compare
    them with.

    If all jobs had communicators, the fixed part contains the part of their memory that does not grow with the number
    of ranks; and, if all had the same number of ranks, the rest of it too.
    """
    zero_bytes = _further(jobs)
    sizes = [(job, job.runtime_bytes - zero_bytes * (job.workload.zero_stage in FURTHER_STAGES)) for job in jobs
             if job.runtime_bytes is not None]
    alone = [size for job, size in sizes if not job.communicates]
    grouped = [(job.workload.data_parallel_size, size) for job, size in sizes if job.communicates]
    if not alone and not grouped or np.median(alone or [size for _, size in grouped]) < NOTHING_BYTES:
        return Runtime(ASSUMED_RUNTIME_BYTES, 0, 0, None, "assumed", SOURCE, has_communicators=False)
    fixed = float(np.median(alone)) if alone else 0.0
    source = f"used memory (cudaMemGetInfo) less PyTorch's segments in {len(alone) + len(grouped)} jobs"
    once, each = 0.0, 0.0
    if grouped:
        once, each, note = _communicators(np.array(grouped, dtype=float), fixed)
        source += note
    if not alone:
        source += "; all had communicators, whose part that does not grow with the ranks is in the fixed one"
        fixed, once = once, 0.0
    left = [size - fixed for size in alone]
    left += [size - fixed - once - each * ranks for ranks, size in grouped]
    error = max(TO_DEVIATION * float(np.median(np.abs(left))), _most(np.abs(left)) / SURE)
    return Runtime(round(fixed), round(once), round(each), error, measured_on, source, bool(grouped), round(zero_bytes))


def _further(jobs: Sequence[MeasuredJob]) -> float:
    """What jobs without communicators have more under :data:`FURTHER_STAGES`."""
    of = {under: [job.runtime_bytes for job in jobs if job.runtime_bytes is not None and not job.communicates
                  and (job.workload.zero_stage in FURTHER_STAGES) is under] for under in (True, False)}
    return max(0.0, float(np.median(of[True]) - np.median(of[False]))) if all(of.values()) else 0.0


def _most(sizes: np.ndarray) -> float:
    """The largest but for one in ten, and for at least one."""
    return float(np.quantile(sizes, SURELY, method="lower")) if len(sizes) > 1 else 0.0


def _communicators(grouped: np.ndarray, fixed: float) -> tuple[float, float, str]:
    """Fixed bytes, bytes per rank, and a note. Theil-Sen estimator: the median slope between jobs with different
    numbers of ranks."""
    ranks, extra = grouped[:, 0], grouped[:, 1] - fixed
    first, second = np.triu_indices(len(ranks), 1)
    differ = ranks[first] != ranks[second]
    if not differ.any():
        return max(0.0, float(np.median(extra))), 0.0, f"; communicators of {int(ranks[0])} ranks only"
    first, second = first[differ], second[differ]
    each = max(0.0, float(np.median((extra[first] - extra[second]) / (ranks[first] - ranks[second]))))
    return max(0.0, float(np.median(extra - each * ranks))), each, ""
