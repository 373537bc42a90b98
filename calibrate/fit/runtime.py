"""Device memory that is not PyTorch's allocator's: the CUDA context, the libraries, communicators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrate.fit.jobs import MeasuredJob
from calibrate.fit.regression import TO_DEVIATION
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.profile.profile import Runtime

NOTHING_BYTES = 16 << 20
"""Less than this is no CUDA context: the device does not show what the runtime takes."""
SOURCE = ("peakcast's assumption for the CUDA context and libraries, not measured. PyTorch's developers give about "
          "300 MB for a context since CUDA 11.7, which loads kernels when they are needed, and above 1000 MB before "
          "(github.com/pytorch/pytorch/issues/107667)")


def fit_runtime(jobs: Sequence[MeasuredJob], measured_on: str) -> Runtime:
    """The median over jobs of one rank, and what communicators add to it by number of ranks.

    Where all jobs had communicators, what these take whatever their number of ranks cannot be told from the rest, nor,
    with one number of ranks only, what each rank takes: it is in the fixed part.
    """
    alone = [job.runtime_bytes for job in jobs if job.runtime_bytes is not None and not job.communicates]
    grouped = [(job.workload.data_parallel_size, job.runtime_bytes) for job in jobs
               if job.runtime_bytes is not None and job.communicates]
    if not alone and not grouped or np.median(alone or [size for _, size in grouped]) < NOTHING_BYTES:
        return Runtime(ASSUMED_RUNTIME_BYTES, 0, 0, None, "assumed", SOURCE)
    fixed = float(np.median(alone)) if alone else 0.0
    source = f"NVML less PyTorch's segments at the end of {len(alone) + len(grouped)} jobs"
    once, each = 0.0, 0.0
    if grouped:
        once, each, note = _communicators(np.array(grouped, dtype=float), fixed)
        source += note
    if not alone:
        source += "; all had communicators, whose part that does not grow with the ranks is in the fixed one"
        fixed, once = once, 0.0
    left = [size - fixed for size in alone]
    left += [size - fixed - once - each * ranks for ranks, size in grouped]
    error = TO_DEVIATION * float(np.median(np.abs(left)))
    return Runtime(round(fixed), round(once), round(each), error, measured_on, source)


def _communicators(grouped: np.ndarray, fixed: float) -> tuple[float, float, str]:
    """Bytes once and for each rank, by Theil and Sen: the median slope between jobs of different numbers of ranks."""
    ranks, extra = grouped[:, 0], grouped[:, 1] - fixed
    one, other = np.triu_indices(len(ranks), 1)
    differ = ranks[one] != ranks[other]
    if not differ.any():
        return max(0.0, float(np.median(extra))), 0.0, f"; communicators of {int(ranks[0])} ranks only"
    one, other = one[differ], other[differ]
    each = max(0.0, float(np.median((extra[one] - extra[other]) / (ranks[one] - ranks[other]))))
    return max(0.0, float(np.median(extra - each * ranks))), each, ""
