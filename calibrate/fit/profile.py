"""From a campaign's rows to a profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrate.campaign.rows import Row
from calibrate.fit import jobs as job_rows
from calibrate.fit.coefficients import Points, fit_coefficients, join
from calibrate.fit.conformal import interval
from calibrate.fit.job_prediction import by_moment, calls, foresee, plain, residuals, run_of
from calibrate.fit.jobs import FIT, HOLDOUT, MeasuredJob
from calibrate.fit.rounding import fit_rounding
from calibrate.fit.runtime import fit_runtime
from calibrate.fit.workspaces import fit_workspaces
from calibrate.records.record import Record
from predictor.common.errors import InputError
from predictor.events.events import FACTORS
from predictor.profile.job_traits import KINDS, kinds
from predictor.profile.profile import SCHEMA_VERSION, AllocatorFit, Device, Interval, Profile, Runtime, quantities
from predictor.profile.profile_rules import COUNTERS, QUANTITIES
from predictor.version import VERSION

ROUNDS = 2
"""Coefficients move the highest points that they are fitted at, so they are fitted again."""


def fit_profile(rows: Iterable[Row], *, measured_on: str, provenance: Mapping[str, Any]) -> Profile:
    """The profile that explains a campaign.

    Args:
        rows: as ``calibrate.campaign`` writes them; roles ``fit`` and ``holdout`` are read.
        measured_on: ``device`` or ``emulated``.
        provenance: date, command and commit; what was fitted on how many jobs is added.

    Raises:
        InputError: no job to fit on.
    """
    rows = list(rows)
    everything = job_rows.read(rows)
    taught = [job for job in everything if job.role == FIT]
    fitted = [job for job in taught if job.predicted]
    if not fitted:
        raise InputError("no job of the campaign ran to its end, so there is nothing to fit: look at its failed jobs")
    start = _empty(next(row.record for row in rows if row.record is not None), fitted[0], measured_on)
    profile, left_out = fit_events(start, fitted)
    held = [job for job in everything if job.role == HOLDOUT and job.predicted]
    profile = replace(profile, allocator=_rounding(profile, fitted), runtime=fit_runtime(taught, measured_on),
                      calibrated=_ranges(fitted), covered=_covered([*fitted, *held]))
    counted = {role: sum(job.role == role for job in everything) for role in job_rows.ROLES}
    return replace(profile, residuals=intervals(profile, held), provenance={
        **provenance, "jobs": counted, "workspaces_left_out": left_out, "residuals_of": [job.id for job in held]})


def fit_events(start: Profile, fitted: Sequence[MeasuredJob]) -> tuple[Profile, dict[str, str]]:
    """A profile's workspaces and coefficients, and why operators with more bytes than predicted have none."""
    found = fit_workspaces((job.extras, calls(job.workload)) for job in fitted)
    profile = replace(start, workspaces=found.kept)
    for _ in range(ROUNDS):
        fresh = fit_coefficients(join([_points(profile, job) for job in fitted]))
        profile, before = replace(profile, coefficients=fresh), profile
        if not any(c.applied for c in {**before.coefficients, **fresh}.values()):
            break
    return profile, dict(found.left_out)


def intervals(profile: Profile, held: Sequence[MeasuredJob]) -> dict[str, Interval]:
    """Of each counter, from jobs that were not fitted; the device's only where its runtime was measured."""
    errors = [residuals(job, foresee(job, profile)) for job in held]
    known = [counter for counter in COUNTERS if counter != "device" or profile.runtime.measured_on != "assumed"]
    return {counter: replace(found, low=max(found.low, -1.0)) for counter in known  # no peak is below 0 bytes
            if (found := interval([error[counter] for error in errors]))}


def _points(profile: Profile, job: MeasuredJob) -> Points:
    by = by_moment(run_of(job.workload, profile))
    both = [at for at in job.moments if at in by]
    scale = np.array([profile.coefficients[f.value].value if f.value in profile.coefficients and
                      profile.coefficients[f.value].applied else 1.0 for f in FACTORS])
    predicted = np.array([by[at] for at in both], dtype=float).reshape(len(both), len(FACTORS)) / scale
    return Points(predicted, np.array([job.moments[at] for at in both], dtype=float))


def _rounding(profile: Profile, fitted: Sequence[MeasuredJob]) -> AllocatorFit:
    def play(job: MeasuredJob, divisions: int) -> tuple[int, int]:
        end = foresee(job, replace(profile, allocator=AllocatorFit(divisions, 0)))
        return end.allocated_bytes, end.reserved_bytes

    return fit_rounding(fitted, play)


def _ranges(fitted: Sequence[MeasuredJob]) -> dict[str, tuple[float, ...]]:
    of_each = [quantities(plain(job.workload).shape, job.workload.data_parallel_size) for job in fitted]
    return {name: (float(min(values)), float(max(values)))
            for name in QUANTITIES if (values := [one[name] for one in of_each])}


def _covered(measured: Sequence[MeasuredJob]) -> dict[str, tuple[str, ...]]:
    of_each = [kinds(job.request, job.formula) for job in (plain(one.workload) for one in measured)]
    return {name: tuple(sorted({one[name] for one in of_each})) for name in KINDS}


def _empty(record: Record, job: MeasuredJob, measured_on: str) -> Profile:
    """A profile that changes nothing, of the device and software of a record."""
    device = record.job.device
    return Profile(
        SCHEMA_VERSION, VERSION,
        Device(plain(job.workload).gpu.name, device.name, device.capacity_bytes, device.driver),
        {name: version for name, version in record.job.software.items() if version is not None}, measured_on, {}, (),
        AllocatorFit(0, 0), Runtime(0, 0, 0, None, "assumed", "nothing yet"), {}, {}, {})
