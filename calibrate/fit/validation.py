"""Validates a fit on jobs that it has not seen: errors group by group, and the coverage of its intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.campaign.rows import Row
from calibrate.fit import jobs as job_rows
from calibrate.fit.conformal import LEVEL, cross_coverage
from calibrate.fit.job_prediction import predict_peaks, residuals
from calibrate.fit.jobs import FIT, HOLDOUT, MeasuredJob
from calibrate.fit.profile import fit_events
from predictor.profile.calibration import Profile

JUDGED = ("requested", "allocated", "reserved")
SAME = 1e-4
"""Difference of two mean relative errors that counts as 0."""


@dataclass(frozen=True)
class GroupErrors:
    """Mean absolute relative errors of a group's jobs, by counter, under a fit without the group.

    Attributes:
        without: errors of predictions without a profile.
        fitted: errors with the profile fitted to all other groups.
    """

    group: str
    jobs: int
    without: Mapping[str, float]
    fitted: Mapping[str, float]

    @property
    def worse(self) -> tuple[str, ...]:
        """Counters whose error is larger with the profile than without."""
        return tuple(counter for counter in self.without if self.fitted[counter] > self.without[counter] + SAME)


@dataclass(frozen=True)
class Coverage:
    """Share of held-out jobs inside an interval that was made from other held-out jobs."""

    rate: float
    jobs: int
    level: float


def cross_validate(rows: Iterable[Row], profile: Profile) -> list[GroupErrors]:
    """The errors of each group of fit jobs, with workspaces and coefficients fitted without it; the rest is the
    profile's."""
    fitted = [job for job in job_rows.read(rows) if job.role == FIT and job.predicted]
    groups = sorted({job.group for job in fitted})
    if len(groups) < 2:
        return []
    result = []
    for group in groups:
        mine = [job for job in fitted if job.group == group]
        others, _ = fit_events(replace(profile, coefficients={}, workspaces=()),
                               [job for job in fitted if job.group != group])
        result.append(GroupErrors(group, len(mine), errors(mine, None), errors(mine, others)))
    return result


def errors(jobs: Sequence[MeasuredJob], profile: Profile | None) -> dict[str, float]:
    """Mean absolute relative error by counter."""
    by_job = [residuals(job, predict_peaks(job, profile)) for job in jobs]
    return {counter: float(np.mean([abs(errors[counter]) for errors in by_job])) for counter in JUDGED}


def coverage(rows: Iterable[Row], profile: Profile, level: float = LEVEL) -> dict[str, Coverage]:
    """Counter -> how often intervals from one half of the held-out jobs hold for the other half. ``all``: how often
    the intervals of all counters hold."""
    by_job = [residuals(job, predict_peaks(job, profile)) for job in job_rows.read(rows)
              if job.role == HOLDOUT and job.predicted]
    known = [counter for counter in (*JUDGED, "device") if by_job and counter in by_job[0]
             and (counter != "device" or profile.runtime.measured_on != "assumed")]
    values = np.array([[errors[counter] for counter in known] for errors in by_job])
    columns = {**dict(zip(known, values.T)), "all": values} if known else {}
    return {name: Coverage(*cross_coverage(column, level), level) for name, column in columns.items()}
