"""Intervals from the residuals of jobs that were not fitted (split conformal prediction).

If residuals of past and future jobs are exchangeable, a new residual is equally likely to fall into each of the n + 1
gaps between n sorted old ones. So the interval from the k-th smallest to the k-th largest residual, with
k = (n + 1) (1 - level) / 2 rounded down, covers a new one with a probability of at least ``level``, whatever the
distribution. This needs n >= 2 / (1 - level) - 1 residuals (19 for 90 %). With fewer, down to half as many, their
absolute values are sorted instead, which gives a symmetric interval. With still fewer, its bound is the largest
absolute value, and its stated level is n / (n + 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from predictor.profile.calibration import Interval

LEVEL = 0.9
SLACK = 1e-9
"""Absorbs the rounding error of (n + 1) (1 - level)."""


def interval(residuals: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The interval for a new residual; None without old residuals."""
    n = len(residuals)
    if not n:
        return None
    ordered, sizes = np.sort(residuals), np.sort(np.abs(residuals))
    tail = math.floor((n + 1) * (1 - level) / 2 + SLACK)
    if tail >= 1:
        return Interval(float(ordered[tail - 1]), float(ordered[n - tail]), level, n)
    rank = math.ceil((n + 1) * level - SLACK)
    size = float(sizes[min(rank, n) - 1])
    return Interval(-size, size, level if rank <= n else n / (n + 1), n)


def cross_coverage(residuals: Sequence[float] | np.ndarray, level: float = LEVEL, repeats: int = 50,
                   seed: int = 0) -> tuple[float, int]:
    """The share of jobs that lie inside the intervals of other jobs.

    The jobs are split at random into halves; the interval of each half is tested on the other half.

    Args:
        residuals: ``float[jobs]``; or ``float[jobs, counters]``: then each counter has its own interval, and a job is
            covered if all of its residuals are.

    Returns:
        The share of covered jobs over all repeats, and the number of jobs.
    """
    values = np.asarray(residuals, dtype=float)
    values = values[:, None] if values.ndim == 1 else values
    random, inside, judged = np.random.default_rng(seed), 0, 0
    if len(values) < 2:
        return math.nan, 0
    for _ in range(repeats):
        order = random.permutation(len(values))
        for mine, other in (halves := np.array_split(order, 2), halves[::-1]):
            bounds = [bound for column in values[mine].T if (bound := interval(column, level)) is not None]
            low, high = [bound.low for bound in bounds], [bound.high for bound in bounds]
            inside += int(((values[other] >= low) & (values[other] <= high)).all(axis=1).sum())
            judged += len(other)
    return inside / judged, len(values)
