"""The exact interval for a share that was counted in a few trials."""

from __future__ import annotations

import math
from collections.abc import Callable

TAIL = 0.025
"""Probability that the share is below the interval, and likewise above it, at most."""
HALVINGS = 60


def exact(hits: int, trials: int) -> tuple[float, float]:
    """Bounds of a probability with at least 95 % confidence, from ``hits`` in ``trials``.

    Each bound is the share with which so many hits or more, or so few or fewer, come in 2.5 % of all cases (Clopper and
    Pearson, Biometrika 1934).
    """
    low = 0.0 if hits == 0 else _crossing(lambda share: 1 - _at_most(hits - 1, trials, share) >= TAIL)
    high = 1.0 if hits == trials else _crossing(lambda share: _at_most(hits, trials, share) <= TAIL)
    return low, high


def _at_most(hits: int, trials: int, share: float) -> float:
    """Probability of at most so many hits, for a share between 0 and 1."""
    def logarithm(count: int) -> float:
        ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
        return ways + count * math.log(share) + (trials - count) * math.log1p(-share)

    return math.fsum(math.exp(logarithm(count)) for count in range(hits + 1))


def _crossing(is_above: Callable[[float], bool]) -> float:
    """The share from which on ``is_above`` is true."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return (low + high) / 2
