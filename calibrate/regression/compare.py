"""A measurement beside its prediction: the same job, predicted as ``peakcast predict`` would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from calibrate.regression.cases import COUNTERS, Case
from predictor.answer.answer import answer
from predictor.answer.prediction import Bound, Prediction
from predictor.events.composed_run import Run
from predictor.jobs import dispatch, survival, training_job
from predictor.jobs.survival import Outcome, Reserved
from predictor.profile import corrections


@dataclass(frozen=True)
class Peak:
    """One counter of one case, measured and predicted; bytes.

    Attributes:
        measured_bytes: None where it was not measured, or where the job ran out of memory: that peak is a lower bound.
        predicted_bytes: with events completing as they did; None where nothing predicts it (``device`` without a
            profile).
        low_bytes, high_bytes: the interval that the prediction gives; None without one. Of ``reserved`` it covers both
            ends of when events complete, with a profile also its residuals.
    """

    measured_bytes: int | None
    predicted_bytes: int | None
    low_bytes: int | None = None
    high_bytes: int | None = None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured: below 0 where the prediction is too low; None without both."""
        if not self.measured_bytes or self.predicted_bytes is None:
            return None
        return (self.predicted_bytes - self.measured_bytes) / self.measured_bytes

    @property
    def inside(self) -> bool | None:
        """Whether the measured peak lies in the interval; None without both."""
        if self.measured_bytes is None or self.low_bytes is None or self.high_bytes is None:
            return None
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


@dataclass(frozen=True)
class Comparison:
    """One case, measured beside predicted. This is what tables and figures are made from.

    Attributes:
        case: the measurement; ``case.labels`` says which groups it belongs to.
        peaks: one :class:`Peak` for each of ``cases.COUNTERS``, in that order: ``requested``, ``allocated``,
            ``reserved``, ``device``.
        moment, step, module, operator: of the predicted requested peak. ``case.moment`` is the measured one.
        factors: predicted bytes by factor (``predictor.events.events.Factor``) at the allocated peak. They add up to
            ``peaks["allocated"].predicted_bytes``; a factor without bytes is left out.
        modules: the same bytes by modality module, then factor.
        capacity_bytes: what the job could have, runtime included; None where unknown.
        verdict: ``fits``, ``uncertain``, ``does_not_fit`` at that capacity; None without one.
        estimate_bytes: what a scheduler would set aside: the upper end of reserved bytes and of the runtime (CUDA
            context, NCCL, libraries).
        runtime_bytes: the runtime's part of the estimate.
        profile: name of the profile that answered; None: none did.
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
        """The largest absolute error of the counters that PyTorch counts; 0 where none is known."""
        return max((abs(error) for error in map(self.error, COUNTERS[:3]) if error is not None), default=0.0)

    @property
    def moment_hit(self) -> bool | None:
        """Whether the requested peak is in the predicted moment; None where the measured one is not known."""
        known = self.case.moment is not None and self.case.survived
        return self.moment == self.case.moment if known else None

    @property
    def verdict_hit(self) -> bool | None:
        """Whether the verdict is what became of the job; None where it is ``uncertain`` or there is none."""
        if self.verdict in (None, "uncertain"):
            return None
        return (self.verdict == "fits") == self.case.survived


def compare(case: Case, profile: str | None = None) -> Comparison:
    """Predict a case's job and put both side by side.

    Args:
        profile: path of a profile, ``none``, or None for the one that ``predict`` would choose.

    Raises:
        InputError: the job cannot be predicted: an engine, a model or a setting that the predictor does not know.
    """
    job = dispatch.prepare(case.workload.replace(profile=profile))
    run, ends = _played(job, case)
    reserved = [end.peak_reserved_bytes for end in ends]
    low, high = (min(reserved), max(reserved)) if len(ends) > 1 else (None, None)
    verdict = _verdict(job, run, max(reserved))
    outcome = Outcome(run, ends[0], None, Reserved(run.rank, reserved[0], low, high), None, verdict)
    said = answer(job, outcome, with_timeline=False, with_history=False, minimum_capacity_bytes=None)
    said = replace(said, peak_device=_device(said, job, case))
    upper, runtime = said.peak_reserved.high or said.peak_reserved.bytes, _runtime(job, case)
    return Comparison(
        case=case, peaks={counter: _peak(case, said, counter) for counter in COUNTERS},
        moment=said.peak.moment.value, step=said.peak.step, module=said.peak.module, operator=said.peak.operator,
        factors={factor.value: size for factor, size in said.factors.items() if size},
        modules={name: {factor.value: size for factor, size in split.items() if size}
                 for name, split in said.modules.items()},
        capacity_bytes=case.workload.capacity, verdict=verdict, estimate_bytes=upper + runtime, runtime_bytes=runtime,
        profile=job.profile and job.profile.name)


def _verdict(job: training_job.Job, run: Run, reserved_bytes: int) -> str | None:
    """As :meth:`predictor.jobs.pipeline.Job.judge`, without its simulations where they would only repeat.

    A run that holds at most so many bytes is the same run wherever it can have them: what was granted still is.
    """
    capacity = job.workload.capacity
    if capacity is not None:
        surely, _ = job.margin.limits(capacity)
        if reserved_bytes <= surely and np.array_equal(job.run(surely).live, run.live):
            return "fits"
    return job.judge().verdict


def _played(job: training_job.Job, case: Case) -> tuple[Run, list[survival.Simulation]]:
    """The run at the case's capacity with no limit, first with events completing as they did, then otherwise."""
    capacity = case.workload.capacity
    run = job.run(capacity)
    others = [name for name in survival.completions(run) if name != case.completion]
    completions = [case.completion, *(others if len(survival.completions(run)) > 1 else ())]
    return run, [survival.play(run, job.setup.allocator, completion=completion, total_bytes=capacity)
                 for completion in completions]


def _ranks(case: Case) -> int:
    """Ranks as the device saw them: a fake process group has no communicator (as ``calibrate.fit.job_prediction``)."""
    return case.workload.data_parallel_size if case.communicates else 1


def _runtime(job: training_job.Job, case: Case) -> int:
    """The upper end of what is not PyTorch's allocator's."""
    return corrections.margin(job.profile, _ranks(case)).runtime_high


def _device(said: Prediction, job: training_job.Job, case: Case) -> Bound | None:
    """As predicted, for the communicators that were there."""
    if said.peak_device is None:
        return None
    runtime = job.profile.profile.runtime
    more = runtime.bytes(_ranks(case)) - runtime.bytes(job.setup.data_parallel_size)
    return Bound(*(None if size is None else size + more
                   for size in (said.peak_device.bytes, said.peak_device.low, said.peak_device.high)))


def _peak(case: Case, said: Prediction, counter: str) -> Peak:
    bound = getattr(said, f"peak_{counter}") or Bound(None)  # type: ignore[arg-type]
    return Peak(case.peaks[counter] if case.survived else None, bound.bytes, bound.low, bound.high)
