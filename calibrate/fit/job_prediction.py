"""Predicts measured jobs under a profile that need not be in a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from calibrate.fit.jobs import MeasuredJob
from predictor.allocator import AllocatorSettings
from predictor.events import timeline
from predictor.events.calls import calls as operator_calls
from predictor.events.composed_run import Run, evaluate
from predictor.events.events import FACTORS, Moment
from predictor.jobs import dispatch, survival, training_job
from predictor.profile import corrections
from predictor.profile.calibration import OperatorWorkspace, Profile
from predictor.profile.job_traits import COUNTERS
from predictor.profile.profile import Choice
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class PredictedPeaks:
    """Predicted peaks of a job in bytes. ``device_bytes`` is None without a profile."""

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int | None


@lru_cache(maxsize=512)
def plain(workload: Workload) -> training_job.Job:
    """The job of :func:`predictor.jobs.dispatch.prepare`, without a profile."""
    return dispatch.prepare(workload.replace(profile="none"))


def run_of(workload: Workload, profile: Profile | None) -> Run:
    """The predicted run on a GPU of the workload's own capacity, as it was measured, with this profile or none."""
    return _run(workload, *_changes(profile))


Scales = tuple[float, ...] | None


def _changes(profile: Profile | None) -> tuple[tuple[OperatorWorkspace, ...], Scales]:
    """The parts of a profile that change events. They are compared by value, so that runs can be cached."""
    return (profile.workspaces, corrections.coefficients(Choice(profile, ""))) if profile else ((), None)


@lru_cache(maxsize=128)
def _run(workload: Workload, workspaces: tuple[OperatorWorkspace, ...], scales: Scales) -> Run:
    job = plain(workload).with_workspaces(workspaces)
    return evaluate(job.composed(workload.capacity, job.rank), job.rank, job.shape, job.gpu, scales)


@lru_cache(maxsize=4096)
def _peaks(workload: Workload, workspaces: tuple[OperatorWorkspace, ...], scales: Scales,
           settings: AllocatorSettings, completion: str) -> PredictedPeaks:
    """Peaks as PyTorch's allocator counts them, without the device's."""
    run = _run(workload, workspaces, scales)
    end = survival.simulate_run(run, settings, completion=completion, total_bytes=workload.capacity)
    return PredictedPeaks(run.peak, end.peak_allocated_bytes, end.peak_reserved_bytes, None)


def predict_peaks(measured: MeasuredJob, profile: Profile | None) -> PredictedPeaks:
    """The predicted peaks of a job, on its GPU and with its event completion."""
    choice = Choice(profile, "") if profile else None
    settings = corrections.allocator_settings(measured.workload.allocator_conf, choice)
    peaks = _peaks(measured.workload, *_changes(profile), settings, measured.completion)
    runtime = profile.runtime.bytes(_communicators(measured), measured.workload.zero_stage) if profile else None
    return peaks if runtime is None else replace(peaks, device_bytes=peaks.reserved_bytes + runtime)


def _communicators(measured: MeasuredJob) -> int:
    """The number of ranks that have communicators on the device: one with a fake process group."""
    return measured.workload.data_parallel_size if measured.communicates else 1


def residuals(measured: MeasuredJob, peaks: PredictedPeaks) -> dict[str, float]:
    """Counter -> measured minus predicted, relative to predicted."""
    result = {}
    for counter in COUNTERS:
        predicted = getattr(peaks, f"{counter}_bytes")
        if predicted is not None:
            result[counter] = getattr(measured, f"{counter}_bytes") / predicted - 1
    return result


def by_moment(run: Run) -> dict[tuple[int, Moment], np.ndarray]:
    """(Step, moment) -> bytes by factor at its highest point. Memory that was live before the moment counts too."""
    highest = timeline.highest_by_moment(run.live, run.events.step, run.events.moment)
    factors = timeline.by_factor(run.events, run.row_bytes, [*highest.values()])
    return dict(zip(highest, np.stack([factors[factor] for factor in FACTORS], axis=1)))


@lru_cache(maxsize=512)
def calls(workload: Workload) -> Mapping[str, Counter]:
    """Calls over all steps, predicted without a profile: operator -> bytes of the call's result -> number of calls.

    Calls and results are defined in :mod:`predictor.events.calls`.
    """
    run = run_of(workload, None)
    result: dict[str, Counter] = {}
    for call in operator_calls(run.events, run.row_bytes):
        result.setdefault(run.events.names[call.operator], Counter())[call.result_bytes] += 1
    return result
