"""Fits a profile to a campaign's measured jobs.

    profile = fit_profile(rows, measured_on="device", provenance={"date": …})
    cross_validate(rows, profile)            # each group against a fit without it
    coverage(rows, profile)                  # of the intervals, on held-out jobs
"""

from calibrate.fit.profile import fit_profile
from calibrate.fit.validation import Coverage, GroupErrors, coverage, cross_validate

__all__ = ["Coverage", "GroupErrors", "coverage", "cross_validate", "fit_profile"]
