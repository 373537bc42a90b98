"""Intervals from the residuals of jobs that were not fitted (split conformal prediction).

If residuals of past and future jobs can be exchanged, a new residual is equally likely to fall in each of the n + 1
gaps between n sorted old ones. So the interval from the k-th smallest to the k-th largest, k = (n + 1) (1 - level) / 2
rounded down, covers it with at least ``level``, whatever the distribution. This needs n >= 2 / (1 - level) - 1 (19 for
90 %). With fewer the sizes of residuals are ordered instead, for a symmetric interval, down to half as many; with still
fewer it is the largest size, and the interval says its true level, n / (n + 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from predictor.profile.profile import Interval

LEVEL = 0.9
SLACK = 1e-9
"""(n + 1) (1 - level) is meant as written, whatever floats make of it."""


def interval(residuals: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Bounds of a new residual; None without any residual."""
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


def crossed(residuals: Sequence[float] | np.ndarray, level: float = LEVEL, repeats: int = 50,
            seed: int = 0) -> tuple[float, int]:
    """How many jobs lie in the intervals of others: the jobs are halved at random, each half judges the other.

    Args:
        residuals: of each job, [jobs]; or of several counters, [jobs, counters], each with its own interval: a job
            is covered where all of its are.

    Returns:
        The share of covered jobs over all repeats, and how many different jobs were judged.
    """
    values = np.asarray(residuals, dtype=float)
    values = values[:, None] if values.ndim == 1 else values
    random, inside, judged = np.random.default_rng(seed), 0, 0
    if len(values) < 2:
        return math.nan, 0
    for _ in range(repeats):
        order = random.permutation(len(values))
        for mine, other in (halves := np.array_split(order, 2), halves[::-1]):
            found = [interval(column, level) for column in values[mine].T]
            low, high = [one.low for one in found], [one.high for one in found]
            inside += int(((values[other] >= low) & (values[other] <= high)).all(axis=1).sum())
            judged += len(other)
    return inside / judged, len(values)
