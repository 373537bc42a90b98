"""Compares a measured job with its prediction, made as ``peakcast predict`` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from calibrate.regression.cases import COUNTERS, Case
from predictor.allocator.simulate import Simulation
from predictor.answer.answer import answer, device_bound
from predictor.answer.prediction import Bound, Prediction
from predictor.events.composed_run import Run
from predictor.jobs import dispatch, survival, training_job
from predictor.jobs.survival import Outcome, Reserved
from predictor.profile.corrections import Margin


@dataclass(frozen=True)
class Peak:
    """One counter of one case, measured and predicted; bytes.

    Attributes:
        measured_bytes: None if not measured, or if the job ran out of memory, as that peak is a lower bound.
        predicted_bytes: for the same completion of CUDA events; None if not predicted (``device`` without a profile).
        low_bytes, high_bytes: the predicted interval; None without one. That of ``reserved`` covers both settings of
            when events complete, and with a profile also its residuals.
    """

    measured_bytes: int | None
    predicted_bytes: int | None
    low_bytes: int | None = None
    high_bytes: int | None = None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured: negative if the prediction is too low; None if either is unknown."""
        if not self.measured_bytes or self.predicted_bytes is None:
            return None
        return (self.predicted_bytes - self.measured_bytes) / self.measured_bytes

    @property
    def both_bytes(self) -> tuple[int, int]:
        """Measured and predicted bytes of a peak that has an error."""
        assert self.measured_bytes is not None and self.predicted_bytes is not None
        return self.measured_bytes, self.predicted_bytes

    @property
    def inside(self) -> bool | None:
        """Whether the measured peak is in the predicted interval; None if either is unknown."""
        if self.measured_bytes is None or self.low_bytes is None or self.high_bytes is None:
            return None
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


@dataclass(frozen=True)
class Comparison:
    """One case with its prediction. Tables and figures are made from these.

    Attributes:
        case: the measurement; ``case.labels`` are the groups that it belongs to.
        peaks: one :class:`Peak` for each of ``cases.COUNTERS``, in that order: ``requested``, ``allocated``,
            ``reserved``, ``device``.
        moment, step, module, operator: of the predicted requested peak. ``case.moment`` is the measured one.
        factors: predicted bytes by factor (``predictor.events.events.Factor``) at the allocated peak. They add up to
            ``peaks["allocated"].predicted_bytes``. Factors without bytes are left out.
        modules: the same bytes by modality module, then factor.
        capacity_bytes: GPU memory of the job, runtime included; None if unknown.
        verdict: ``fits``, ``uncertain`` or ``does_not_fit`` at that capacity; None without a capacity.
        estimate_bytes: memory that a scheduler would reserve: the upper ends of reserved bytes and of the runtime (CUDA
            context, NCCL, libraries).
        runtime_bytes: the runtime's part of the estimate.
        profile: name of the profile that the prediction uses; None without one.
    """

    case: Case
    peaks: Mapping[str, Peak]
    moment: str
    step: int
    module: str
    operator: str
    factors: Mapping[str, int]
    modules: Mapping[str, Mapping[str, int]]
    capacity_bytes: int | None
    verdict: str | None
    estimate_bytes: int
    runtime_bytes: int
    profile: str | None

    def error(self, counter: str) -> float | None:
        """Signed relative error of a counter (:attr:`Peak.error`)."""
        return self.peaks[counter].error

    @property
    def worst_error(self) -> float:
        """The largest absolute error of PyTorch's counters; 0 if none is known."""
        return max((abs(error) for error in map(self.error, COUNTERS[:3]) if error is not None), default=0.0)

    @property
    def moment_hit(self) -> bool | None:
        """Whether the requested peak is in the predicted moment; None if the measured moment is unknown."""
        known = self.case.moment is not None and self.case.survived
        return self.moment == self.case.moment if known else None

    @property
    def verdict_hit(self) -> bool | None:
        """Whether the verdict is right; None if it is ``uncertain`` or missing."""
        if self.verdict in (None, "uncertain"):
            return None
        return (self.verdict == "fits") == self.case.survived


def compare(case: Case, profile: str | None = None) -> Comparison:
    """Predicts the job of a case, in the releases that it was measured with.

    Args:
        profile: path of a profile, ``none``, or None for the one that ``predict`` would choose; for a job of an
            emulated GPU, among those of an emulated GPU, which does not have a real one's libraries and driver.

    Raises:
        InputError: the job cannot be predicted, as the predictor does not know its engine, model or a setting, or must
            trace it and has other releases.
    """
    workload = case.workload.replace(profile=profile or ("emulated" if case.measured_on == "emulated" else None))
    if "versions" in workload.filled_in:
        workload = workload.replace(versions={**workload.versions, **case.versions})
    job = dispatch.prepare(workload)
    run, ends = _played(job, case)
    reserved = [end.peak_reserved_bytes for end in ends]
    low, high = (min(reserved), max(reserved)) if len(ends) > 1 else (None, None)
    margin = _margin(job, case)
    verdict = _verdict(job, margin, run, max(reserved))
    outcome = Outcome(run, ends[0], None, Reserved(run.rank, reserved[0], low, high), None, verdict)
    prediction = answer(job, outcome, with_timeline=False, with_history=False, minimum_capacity_bytes=None)
    # an assumed range is no prediction to compare with: only a profile has another
    prediction = replace(prediction, device=device_bound(prediction.reserved, margin) if job.profile else None)
    peak, runtime = prediction.peak, margin.runtime_high
    upper = prediction.peak_reserved_bytes_high or prediction.peak_reserved_bytes
    return Comparison(
        case=case, peaks={counter: _peak(case, prediction, counter) for counter in COUNTERS},
        moment=peak.moment.value, step=peak.step, module=peak.module, operator=peak.operator,
        factors={factor.value: size for factor, size in prediction.factors.items() if size},
        modules={name: {factor.value: size for factor, size in split.items() if size}
                 for name, split in prediction.modules.items()},
        capacity_bytes=case.workload.capacity, verdict=verdict, estimate_bytes=upper + runtime, runtime_bytes=runtime,
        profile=job.profile.name if job.profile else None)


def _verdict(job: training_job.Job, margin: Margin, run: Run, reserved_bytes: int) -> str | None:
    """The verdict with a margin, without simulations that would repeat this one.

    A run that reserves at most ``reserved_bytes`` is the same run at every capacity that leaves it those bytes.
    """
    capacity = job.workload.capacity
    if capacity is not None:
        surely, _ = margin.limits(capacity)
        if reserved_bytes <= surely and np.array_equal(job.run(surely).live, run.live):
            return "fits"
    return survival.judge(job.runs, job.setup.allocator, capacity, margin).verdict


def _played(job: training_job.Job, case: Case) -> tuple[Run, list[Simulation]]:
    """The run at the case's capacity and its simulations without a limit: first with the measured completion of CUDA
    events, then with the other one, if that can matter.
    """
    capacity = case.workload.capacity
    run = job.run(capacity)
    others = [name for name in survival.completions(run) if name != case.completion]
    completions = [case.completion, *(others if len(survival.completions(run)) > 1 else ())]
    return run, [survival.simulate_run(run, job.setup.allocator, completion=completion, total_bytes=capacity)
                 for completion in completions]


def _margin(job: training_job.Job, case: Case) -> Margin:
    """The margin of the measurement: with the communicators that existed, which a fake process group has none of. An
    emulated GPU does not have what is assumed outside PyTorch's allocator."""
    margin = job.margin_with(job.communicators if case.communicates else 0)
    assumed = job.profile is None or job.profile.profile.runtime.measured_on == "assumed"
    return replace(margin, runtime_low=0, runtime_high=0) if assumed and case.measured_on == "emulated" else margin


def _peak(case: Case, prediction: Prediction, counter: str) -> Peak:
    measured = case.peaks[counter] if case.survived else None
    bound: Bound | None = getattr(prediction, counter)
    return Peak(measured, bound.bytes, bound.low, bound.high) if bound else Peak(measured, None)
