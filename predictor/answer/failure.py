"""Where a job runs out of memory if PyTorch can have a given number of bytes, and what holds the memory then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from predictor.allocator.sizes import round_to_division, segment_size
from predictor.answer.answer import failure_of, sum_of
from predictor.answer.attribution import attributed
from predictor.answer.prediction import OutOfMemory
from predictor.common.progress import Progress
from predictor.events.events import Factor
from predictor.jobs import dispatch, survival
from predictor.profile.corrections import Margin
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class LimitOutcome:
    """A job with a limited allocator. Sizes in bytes.

    Attributes:
        limit_bytes: the bytes that PyTorch could have.
        failure: the allocation that fails; None if none does.
        segment_bytes: the failing request, rounded up to a segment, which PyTorch's message calls "Tried to allocate".
        factors, modules: allocated bytes right before that allocation, modules as of
            ``Prediction.modules_attributed``.
        peak_requested_bytes, peak_allocated_bytes, peak_reserved_bytes: peaks of a job that does not fail.
    """

    limit_bytes: int
    failure: OutOfMemory | None
    segment_bytes: int | None
    factors: Mapping[Factor, int]
    modules: Mapping[str, Mapping[Factor, int]]
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


def with_limit(workload: Workload, limit_bytes: int, capacity_bytes: int,
               progress: Progress | None = None) -> LimitOutcome:
    """Runs a job in the simulated allocator with exactly so much memory for PyTorch.

    Args:
        limit_bytes: the bytes that PyTorch can have.
        capacity_bytes: the GPU's whole memory. The rest is taken by others.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`.
    """
    job = dispatch.prepare(workload, progress)
    rest = max(0, capacity_bytes - limit_bytes)
    outcome = survival.judge(job.runs, job.setup.allocator, capacity_bytes, Margin(rest, rest))
    peaks = outcome.run.peak, outcome.peak_allocated_bytes, outcome.reserved.bytes
    failure = failure_of(outcome)
    if failure is None or outcome.failure is None:
        return LimitOutcome(limit_bytes, None, None, {}, {}, *peaks)
    run, failed_at = outcome.failure.run, outcome.failure.simulation.failed_at
    assert failed_at is not None  # a failure has a place
    modules, _ = attributed(run, failed_at - 1, failure.allocated_bytes, job)
    settings = job.setup.allocator
    rounded = round_to_division(failure.requested_bytes, settings.roundup_power2_divisions)
    return LimitOutcome(limit_bytes, failure, segment_size(rounded, settings), sum_of(modules), modules, *peaks)
