"""Fits a profile to a campaign's measured jobs.

    profile = fit_profile(rows, measured_on="device", provenance={"date": …})
    cross_validate(rows, profile)            # errors of each group under a fit without it
    coverage(rows, profile)                  # how often the intervals hold for held-out jobs

Known limitations:

- Jobs that failed or ran out of memory are not used.
- A coefficient stays 1 where too few points have the factor or the jobs cannot separate it from others; the factor
  ``allocator`` has none, as it is simulated.
- A workspace is linear in the bytes of the call's largest result. Extra bytes of calls without predicted bytes have
  no workspace.
- If all jobs had communicators, the part of their memory that does not grow with the number of ranks counts as the
  runtime's.
- With fewer held-out jobs than an interval's level needs (19 for 90 %), the interval is symmetric; with still fewer,
  it states a lower level.
"""

from calibrate.fit.profile import fit_profile
from calibrate.fit.validation import Coverage, GroupErrors, coverage, cross_validate

__all__ = ["Coverage", "GroupErrors", "coverage", "cross_validate", "fit_profile"]
