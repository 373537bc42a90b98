"""Robust linear least squares within bounds, and which parameters the data can tell apart."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

TINY = 1e-9
"""Relative error that counts as none: below what a float keeps of a byte count."""
ROUNDS = 4
"""The scale of residuals is estimated so often; it settles after two or three."""
TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Parameters with their standard errors.

    Attributes:
        residuals: measured less fitted, over the unit of each row.
        weights: of each row, from 0 to 1; small where it was taken for an outlier.
    """

    values: np.ndarray
    standard_errors: np.ndarray
    residuals: np.ndarray
    weights: np.ndarray


def fit(columns: np.ndarray, measured: np.ndarray, units: np.ndarray, low: np.ndarray, high: np.ndarray) -> Estimate:
    """``columns @ values = measured``, each row's error counted in its unit.

    The loss is quadratic for ordinary errors and grows like the error itself for outliers (``soft_l1`` of
    scipy.optimize.least_squares). What is ordinary is the residuals' own median deviation, so that a majority that
    agrees exactly is not moved by a minority. It begins from least absolute errors, for the same reason.

    Args:
        columns: ``float[rows, parameters]``, of full rank.
        units: ``float[rows]``, above 0.
        low: smallest allowed values, with ``high``.
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
    """By weighted least squares, weights being one over the last error."""
    values = np.linalg.lstsq(design, target, rcond=None)[0]
    for _ in range(50):
        errors = np.abs(target - design @ values)
        weights = 1 / np.sqrt(np.maximum(errors, TINY * max(1.0, float(np.abs(target).max()))))
        values = np.linalg.lstsq(design * weights[:, None], target * weights, rcond=None)[0]
    return values


def _scale(residuals: np.ndarray) -> float:
    return TO_DEVIATION * float(np.median(np.abs(residuals)))


def majority(columns: np.ndarray, measured: np.ndarray, units: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """``bool[rows]``: rows near the line, through any of their points, that more than half of them are nearest to.

    Least median of squares (Rousseeuw, 1984), then all within three standard deviations. Where two families of
    points lie on two lines, the least sum of errors is a compromise that is right for neither; this is one of them.

    Args:
        columns: ``float[rows, 1 or 2]``.
        shares: ``float[rows]``, how much each row counts.
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
"""Units of error within which rows always agree."""
MOST_SUBSETS = 3000


def _subsets(rows: int, size: int) -> Iterable[tuple[int, ...]]:
    """All choices of so many rows, or as many as there is time for, the same ones each time."""
    if math.comb(rows, size) <= MOST_SUBSETS:
        return combinations(range(rows), size)
    draw = random.Random(0)
    return (tuple(draw.sample(range(rows), size)) for _ in range(MOST_SUBSETS))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """The smallest value that more than half of the weight does not exceed: two that disagree are no majority."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] * (1 / 2 + TINY))])


def inflation(columns: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Variance inflation of each parameter: by how much the other columns widen its variance; 1 if not at all.

    Infinite where a column is a sum of others, or zero.
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
