"""Robust linear least squares within bounds, and the variance inflation of parameters."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

TINY = 1e-9
"""Relative error that counts as 0: a float keeps no more of a byte count."""
ROUNDS = 4
"""Estimates of the residuals' scale. It converges after two or three."""
TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Parameters with their standard errors.

    Attributes:
        residuals: measured minus fitted, divided by the row's unit.
        weights: weight of each row from 0 to 1; small for outliers.
    """

    values: np.ndarray
    standard_errors: np.ndarray
    residuals: np.ndarray
    weights: np.ndarray


def fit(columns: np.ndarray, measured: np.ndarray, units: np.ndarray, low: np.ndarray, high: np.ndarray) -> Estimate:
    """Solves ``columns @ values = measured``, with each row's error divided by its unit.

    The loss is quadratic for small errors and linear for outliers (``soft_l1`` of scipy.optimize.least_squares). The
    scale between both is the residuals' own median deviation, so that a minority does not move a majority that agrees
    exactly. For the same reason, the first estimate minimizes absolute errors.

    Args:
        columns: ``float[rows, parameters]``, of full rank.
        units: ``float[rows]``, above 0.
        low, high: bounds of the values.
    """
    from scipy.optimize import least_squares

    scaled, target = columns / units[:, None], measured / units
    size = np.maximum(np.linalg.norm(scaled, axis=0), np.finfo(float).tiny)  # parameters of different units
    design = scaled / size
    begin = np.clip(_least_absolute(design, target), low * size, high * size)
    floor = TINY * max(1.0, float(np.abs(target).max()))
    values, scale = begin, max(_scale(target - design @ begin), floor)
    for _ in range(ROUNDS):
        values = least_squares(lambda x: design @ x - target, values, jac=lambda _: design, loss="soft_l1",
                               f_scale=scale, bounds=(low * size - floor, high * size + floor), xtol=1e-14, ftol=1e-14,
                               gtol=1e-14).x
        values = np.clip(values, low * size, high * size)
        scale, before = max(_scale(target - design @ values), floor), scale
        if abs(scale - before) <= 1e-3 * before:
            break
    residuals = target - design @ values
    weights = 1 / np.sqrt(1 + (residuals / scale) ** 2)  # of soft_l1
    freedom = max(1, len(target) - design.shape[1])
    variance = float((weights * residuals ** 2).sum()) / freedom
    covariance = variance * np.linalg.pinv(design.T @ (design * weights[:, None]))
    errors = np.sqrt(np.maximum(np.diag(covariance), 0))
    return Estimate(values / size, errors / size, residuals, weights)


def _least_absolute(design: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Minimizes absolute errors, by least squares that are repeatedly weighted with 1 / error."""
    values = np.linalg.lstsq(design, target, rcond=None)[0]
    for _ in range(50):
        errors = np.abs(target - design @ values)
        weights = 1 / np.sqrt(np.maximum(errors, TINY * max(1.0, float(np.abs(target).max()))))
        values = np.linalg.lstsq(design * weights[:, None], target * weights, rcond=None)[0]
    return values


def _scale(residuals: np.ndarray) -> float:
    return TO_DEVIATION * float(np.median(np.abs(residuals)))


def majority(columns: np.ndarray, measured: np.ndarray, units: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """``bool[rows]``: whether a row is near the line on which most of the rows lie.

    The line has the least median of squares (Rousseeuw, 1984); rows within three standard deviations are near it.
    Where two groups of points lie on two lines, the least sum of errors gives a compromise that fits neither group.
    This method gives one of the two lines.

    Args:
        columns: ``float[rows, 1 or 2]``.
        shares: ``float[rows]``, weights of the rows.
    """
    rows, parameters = columns.shape
    if rows <= parameters:
        return np.ones(rows, dtype=bool)
    best, chosen = np.inf, np.zeros(rows)
    for points in _subsets(rows, parameters):
        square = columns[list(points)]
        if abs(np.linalg.det(square)) <= TINY * np.abs(square).prod(axis=1).max():
            continue
        errors = np.abs(measured - columns @ np.linalg.solve(square, measured[list(points)])) / units
        median = _weighted_median(errors, shares)
        if median < best:
            best, chosen = median, errors
    return chosen <= 3 * max(TO_DEVIATION * best, NEAR)


NEAR = 0.01
"""Rows with smaller errors, in units, always agree."""
MOST_SUBSETS = 3000


def _subsets(rows: int, size: int) -> Iterable[tuple[int, ...]]:
    """All subsets of ``size`` rows, or :data:`MOST_SUBSETS` random ones, the same each time."""
    if math.comb(rows, size) <= MOST_SUBSETS:
        return combinations(range(rows), size)
    draw = random.Random(0)
    return (tuple(draw.sample(range(rows), size)) for _ in range(MOST_SUBSETS))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """The smallest value that more than half of the weight does not exceed. Two values that differ are no majority."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] * (1 / 2 + TINY))])


def inflation(columns: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Variance inflation: the factor by which the other columns increase the variance of each parameter.

    It is infinite for a column that is 0 or a linear combination of others.
    """
    scaled = columns / units[:, None]
    size = np.linalg.norm(scaled, axis=0)
    result = np.full(columns.shape[1], np.inf)
    for index in np.flatnonzero(size > 0):
        column = scaled[:, index] / size[index]
        others = scaled[:, [i for i in np.flatnonzero(size > 0) if i != index]]
        if others.shape[1]:
            others = others / np.linalg.norm(others, axis=0)
            column = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        left = float(column @ column)
        result[index] = 1 / left if left > TINY else np.inf
    return result
