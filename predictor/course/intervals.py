"""Wilson's interval for a share that was counted in few trials."""

from __future__ import annotations

import math

NORMAL_95 = 1.959963984540054
"""Quantile of the normal distribution that leaves 2.5 % above it."""


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Bounds of a probability with 95 % confidence, from ``hits`` in ``trials`` (Wilson 1927; Brown, Cai and DasGupta,
    Statistical Science 2001, recommend it for few trials)."""
    square, share = NORMAL_95**2, hits / trials
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    width = NORMAL_95 / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    return (0.0 if hits == 0 else max(0.0, middle - width)), (1.0 if hits == trials else min(1.0, middle + width))
