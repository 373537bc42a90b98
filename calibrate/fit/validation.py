"""Whether a fit holds on jobs that it has not seen: group by group, and the coverage of its intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.campaign.rows import Row
from calibrate.fit import jobs as job_rows
from calibrate.fit.conformal import LEVEL, crossed
from calibrate.fit.job_prediction import foresee, residuals
from calibrate.fit.jobs import FIT, HOLDOUT, MeasuredJob
from calibrate.fit.profile import fit_events
from predictor.profile.profile import Profile

JUDGED = ("requested", "allocated", "reserved")
SAME = 1e-4
"""Difference of two mean relative errors that is none."""


@dataclass(frozen=True)
class GroupErrors:
    """Mean absolute relative error of a group's jobs, by counter, when the group was not fitted.

    Attributes:
        without: of predictions with no profile.
        fitted: with the profile of all other groups.
    """

    group: str
    jobs: int
    without: Mapping[str, float]
    fitted: Mapping[str, float]

    @property
    def worse(self) -> tuple[str, ...]:
        """Counters that the profile makes worse."""
        return tuple(counter for counter in self.without if self.fitted[counter] > self.without[counter] + SAME)


@dataclass(frozen=True)
class Coverage:
    """Share of held-out jobs inside an interval made from others of them."""

    rate: float
    jobs: int
    level: float


def cross_validate(rows: Iterable[Row], profile: Profile) -> list[GroupErrors]:
    """Each group of fit jobs against workspaces and coefficients fitted without it; the rest as in the profile."""
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
    found = [residuals(job, foresee(job, profile)) for job in jobs]
    return {counter: float(np.mean([abs(one[counter]) for one in found])) for counter in JUDGED}


def coverage(rows: Iterable[Row], profile: Profile, level: float = LEVEL) -> dict[str, Coverage]:
    """By counter: how often intervals from one half of the held-out jobs hold for the other half; under ``all`` how
    often those of all counters do."""
    found = [residuals(job, foresee(job, profile)) for job in job_rows.read(rows)
             if job.role == HOLDOUT and job.predicted]
    known = [counter for counter in (*JUDGED, "device") if found and counter in found[0]
             and (counter != "device" or profile.runtime.measured_on != "assumed")]
    values = np.array([[one[counter] for counter in known] for one in found])
    columns = {**dict(zip(known, values.T)), "all": values} if known else {}
    return {name: Coverage(*crossed(column, level), level) for name, column in columns.items()}
