"""Fits a coefficient to each factor: its measured bytes over its predicted bytes. In theory, each is 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.fit import regression
from predictor.events.events import FACTORS, Factor
from predictor.profile.calibration import Coefficient

LOW, HIGH = 0.5, 2.0
"""Bounds of a coefficient."""
INFLATION = 30.0
"""Largest variance inflation at which a factor counts as separate from the others."""
SHARE = 0.01
"""Points where a factor has at least this share of the peak count towards fitting it."""
LOOSE = 0.05
"""Largest standard error of a coefficient that is used."""
NEGLIGIBLE = 0.005
"""A coefficient that differs from 1 by no more than this counts as 1."""
SIGNIFICANT = 3.0
"""A coefficient is applied if it differs from 1 by more than this many standard errors."""
SIMULATED = "simulated from the events, never scaled"


@dataclass(frozen=True, eq=False)
class Points:
    """The highest points of moments.

    Attributes:
        predicted: ``float[points, factors]``, predicted bytes of each of :data:`FACTORS`, without coefficients.
        measured: ``float[points]``, measured requested bytes.
    """

    predicted: np.ndarray
    measured: np.ndarray


def fit_coefficients(points: Points) -> dict[str, Coefficient]:
    """A coefficient for each factor: 1, with a note, where the data do not determine it."""
    predicted, measured = _distinct(points)
    result = {factor.value: Coefficient(1.0, None, 0, False, False, "no measured job has it") for factor in FACTORS}
    result[Factor.ALLOCATOR.value] = Coefficient(1.0, None, 0, False, False, SIMULATED)
    if not len(measured):
        return result
    units, share = measured, predicted / measured[:, None]
    counts = (share >= SHARE).sum(axis=0)
    candidates = []
    for index, factor in enumerate(FACTORS):
        if factor is Factor.ALLOCATOR or not predicted[:, index].any():
            continue
        if counts[index] <= len(FACTORS):
            result[factor.value] = _unfitted(int(counts[index]), f"at least {SHARE:.0%} of {counts[index]} points only")
        else:
            candidates.append(index)
    inflation = regression.inflation(predicted[:, candidates], units)
    for index, value in zip(candidates, inflation):
        if value > INFLATION:
            result[FACTORS[index].value] = _unfitted(
                int(counts[index]), f"the jobs cannot tell it from other factors (variance inflation {value:,.0f})")
    fitted = [index for index, value in zip(candidates, inflation) if value <= INFLATION]
    if len(measured) <= len(fitted) or not fitted:
        return result
    offset = predicted.sum(axis=1)
    size = len(fitted)
    estimate = regression.fit(predicted[:, fitted], measured - offset, units, np.full(size, LOW - 1),
                              np.full(size, HIGH - 1))
    for index, change, error in zip(fitted, estimate.values, estimate.standard_errors):
        result[FACTORS[index].value] = _judged(1 + float(change), float(error), int(counts[index]))
    return result


def _judged(value: float, error: float, samples: int) -> Coefficient:
    if error > LOOSE:
        return _unfitted(samples, f"the jobs leave it open (standard error {error:.3f})")
    if abs(value - 1) <= NEGLIGIBLE:
        note = "within half a percent of 1"
    elif abs(value - 1) <= SIGNIFICANT * error:
        note = f"not clearly different from 1 ({SIGNIFICANT:.0f} standard errors)"
    else:
        return Coefficient(value, error, samples, True, True, "differs from theory's 1: look for the cause")
    return Coefficient(value, error, samples, True, False, note)


def _unfitted(samples: int, note: str) -> Coefficient:
    return Coefficient(1.0, None, samples, False, False, note)


def _distinct(points: Points) -> tuple[np.ndarray, np.ndarray]:
    """The distinct points: steps repeat each other, which adds no information."""
    rows = np.unique(np.concatenate([points.predicted, points.measured[:, None]], axis=1), axis=0)
    return rows[:, :-1], rows[:, -1]


def join(parts: Sequence[Points]) -> Points:
    """All points of several jobs."""
    if not parts:
        return Points(np.zeros((0, len(FACTORS))), np.zeros(0))
    return Points(np.concatenate([part.predicted for part in parts]), np.concatenate([part.measured for part in parts]))
