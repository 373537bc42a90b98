"""Fits a profile to the rows of a campaign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrate.campaign.rows import Row
from calibrate.fit import jobs as job_rows
from calibrate.fit.addresses import fit_address_step
from calibrate.fit.coefficients import Points, fit_coefficients, join
from calibrate.fit.conformal import interval
from calibrate.fit.job_prediction import by_moment, calls, plain, predict_peaks, residuals, run_of
from calibrate.fit.jobs import FIT, HOLDOUT, MeasuredJob
from calibrate.fit.rounding import fit_rounding
from calibrate.fit.runtime import fit_runtime
from calibrate.fit.workspaces import fit_workspaces
from calibrate.records.record import Record
from predictor.common.errors import InputError
from predictor.events.events import FACTORS
from predictor.profile.calibration import AllocatorFit, Device, Interval, Profile, Runtime
from predictor.profile.job_traits import COUNTERS, TRAITS, traits_of
from predictor.profile.profile import SCHEMA_VERSION, quantities
from predictor.profile.profile_rules import QUANTITIES
from predictor.version import VERSION

NEGLIGIBLE = 1e-4
"""A held-out job that lies outside of an interval by less than this share of its peak counts as inside."""
ROUNDS = 2
"""Rounds of fitting. Coefficients move the highest points at which they are fitted, so they are fitted again."""


def fit_profile(rows: Iterable[Row], *, measured_on: str, provenance: Mapping[str, Any]) -> Profile:
    """The profile that explains a campaign.

    Args:
        rows: rows of a campaign, of which the roles ``fit`` and ``holdout`` are used.
        measured_on: ``device`` or ``emulated``.
        provenance: date, command and commit. Numbers of jobs, operators without a workspace and the ids of the
            held-out jobs are added.

    Raises:
        InputError: no job can be fitted.
    """
    rows = list(rows)
    completed = job_rows.read(rows)
    fit_jobs = [job for job in completed if job.role == FIT]
    fitted = [job for job in fit_jobs if job.predicted]
    if not fitted:
        raise InputError("no job of the campaign ran to its end, so there is nothing to fit: look at its failed jobs")
    start = _empty(next(row.record for row in rows if row.record is not None), fitted[0], measured_on)
    profile, left_out = fit_events(start, fitted)
    held = [job for job in completed if job.role == HOLDOUT and job.predicted]
    profile = replace(profile, allocator=_allocator(profile, fitted), runtime=fit_runtime(fit_jobs, measured_on),
                      calibrated=_ranges(fitted))
    errors = [residuals(job, predict_peaks(job, profile)) for job in held]
    bounds = intervals(profile, errors)
    counted = {role: sum(job.role == role for job in completed) for role in job_rows.ROLES}
    return replace(profile, residuals=bounds, covered=_covered(fitted, held, errors, bounds), provenance={
        **provenance, "jobs": counted, "workspaces_left_out": left_out, "residuals_of": [job.id for job in held]})


def fit_events(start: Profile, fitted: Sequence[MeasuredJob]) -> tuple[Profile, dict[str, str]]:
    """The profile with fitted workspaces and coefficients; and operator -> the reason why its extra bytes have no
    workspace."""
    fit = fit_workspaces((job.extras, calls(job.workload)) for job in fitted)
    profile = replace(start, workspaces=fit.kept)
    for _ in range(ROUNDS):
        fresh = fit_coefficients(join([_points(profile, job) for job in fitted]))
        profile, before = replace(profile, coefficients=fresh), profile
        if not any(c.applied for c in {**before.coefficients, **fresh}.values()):
            break
    return profile, dict(fit.left_out)


def intervals(profile: Profile, errors: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """Counter -> its interval, from the residuals of held-out jobs. ``device`` has one only if the runtime's memory was
    measured."""
    known = [counter for counter in COUNTERS if counter != "device" or profile.runtime.measured_on != "assumed"]
    return {counter: replace(bounds, low=max(bounds.low, -1.0)) for counter in known  # no peak is below 0 bytes
            if (bounds := interval([error[counter] for error in errors]))}


def _points(profile: Profile, job: MeasuredJob) -> Points:
    by = by_moment(run_of(job.workload, profile))
    both = [at for at in job.moments if at in by]
    scale = np.array([profile.coefficients[f.value].value if f.value in profile.coefficients and
                      profile.coefficients[f.value].applied else 1.0 for f in FACTORS])
    predicted = np.array([by[at] for at in both], dtype=float).reshape(len(both), len(FACTORS)) / scale
    return Points(predicted, np.array([job.moments[at] for at in both], dtype=float))


def _allocator(profile: Profile, fitted: Sequence[MeasuredJob]) -> AllocatorFit:
    """The rounding, and with it the order of addresses."""
    def play(job: MeasuredJob, allocator: AllocatorFit) -> tuple[int, int]:
        end = predict_peaks(job, replace(profile, allocator=allocator))
        return end.allocated_bytes, end.reserved_bytes

    found = fit_rounding(fitted, lambda job, divisions: play(job, AllocatorFit(divisions, 0)))
    return replace(found, address_step_bytes=fit_address_step(
        fitted, lambda job, step: play(job, replace(found, address_step_bytes=step))))


def _ranges(fitted: Sequence[MeasuredJob]) -> dict[str, tuple[float, ...]]:
    of_each = [quantities(plain(job.workload).shape, job.workload.data_parallel_size) for job in fitted]
    return {name: (float(min(values)), float(max(values)))
            for name in QUANTITIES if (values := [job_quantities[name] for job_quantities in of_each])}


def _covered(fitted: Sequence[MeasuredJob], held: Sequence[MeasuredJob], errors: Sequence[Mapping[str, float]],
             bounds: Mapping[str, Interval]) -> dict[str, tuple[str, ...]]:
    """The values of each trait for which the intervals count: most held-out jobs with the value lie inside all of them.

    The intervals leave out the outermost residuals, which may be those of the only job with a value. A value that was
    only fitted is no test of a prediction. Without held-out jobs there are no intervals, and all fitted values count.
    """
    if not held:
        held, errors = fitted, [{}] * len(fitted)
    votes: dict[str, dict[str, list[bool]]] = {name: {} for name in TRAITS}
    for job, error in zip(held, errors):
        inside = all(bounds[counter].low - NEGLIGIBLE <= error[counter] <= bounds[counter].high + NEGLIGIBLE
                     for counter in bounds if counter in error)
        plain_job = plain(job.workload)
        for name, value in traits_of(plain_job.request, plain_job.formula).items():
            votes[name].setdefault(value, []).append(inside)
    return {name: tuple(sorted(value for value, of in values.items() if 2 * sum(of) > len(of)))
            for name, values in votes.items()}


def _empty(record: Record, job: MeasuredJob, measured_on: str) -> Profile:
    """A profile without corrections, for the device and software of a record."""
    device = record.job.device
    return Profile(
        SCHEMA_VERSION, VERSION,
        Device(plain(job.workload).gpu.name, device.name, device.capacity_bytes, device.driver),
        {name: version for name, version in record.job.software.items() if version is not None}, measured_on, {}, (),
        AllocatorFit(0, 0), Runtime(0, 0, 0, None, "assumed", "nothing yet"), {}, {}, {})
