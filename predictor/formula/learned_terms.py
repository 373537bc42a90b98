"""Size terms of learned formulas that are not polynomials of the shape: rounded and interpolated sizes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from predictor.events.sizes import Monomial


@dataclass(frozen=True)
class Rounded:
    """A monomial of the shape whose sequence is rounded up to a multiple, as some kernels round it."""

    exponents: tuple[int, int, int]
    multiple: int

    def __call__(self, shape, gpu=None) -> np.ndarray | int:
        batch, sequence, images = shape
        return Monomial(self.exponents)((batch, -(-sequence // self.multiple) * self.multiple, images))

    def __str__(self) -> str:
        return f"rounded({Monomial(self.exponents)}, {self.multiple})"


@dataclass(frozen=True)
class Interpolated:
    """Bytes by linear interpolation over a monomial. Outside of the points the first or last line is extended.

    Attributes:
        over: exponents of the monomial.
        points: pairs of the monomial's value and bytes, ordered by value; at least two.
    """

    over: tuple[int, int, int]
    points: tuple[tuple[int, int], ...]

    def __call__(self, shape, gpu=None) -> np.ndarray | int:
        value = Monomial(self.over)(shape)
        return np.vectorize(self.between, otypes=[np.int64])(value) if isinstance(value, np.ndarray) \
            else self.between(value)

    def between(self, value: int) -> int:
        """Bytes at a value of the monomial."""
        at = min(max(bisect_right(self.points, (value, float("inf"))), 1), len(self.points) - 1)
        (x, low), (end, high) = self.points[at - 1: at + 1]
        return max(0, low + (high - low) * (int(value) - x) // (end - x))

    def __str__(self) -> str:
        return f"interpolated({Monomial(self.over)})"


def to_json(term: Rounded | Interpolated) -> dict:
    """A term as JSON data."""
    if isinstance(term, Rounded):
        return {"rounded": list(term.exponents), "multiple": term.multiple}
    return {"interpolated": list(term.over), "points": [list(point) for point in term.points]}


def from_json(document: dict) -> Rounded | Interpolated:
    """The term of JSON data that :func:`to_json` made.

    Raises:
        ValueError: the data describe no valid term.
    """
    name = "rounded" if "rounded" in document else "interpolated"
    exponents = exponents_of(document[name])
    if name == "rounded":
        multiple = document["multiple"]
        if type(multiple) is not int or not 1 <= multiple <= 1 << 20:
            raise ValueError("multiple")
        return Rounded(exponents, multiple)
    points = tuple((x, y) for x, y in document["points"])
    values = [x for x, _ in points]
    if len(points) < 2 or any(type(n) is not int or not 0 <= n < 1 << 62 for point in points for n in point) \
            or values != sorted(set(values)):
        raise ValueError("points")
    return Interpolated(exponents, points)


def exponents_of(value: list) -> tuple[int, int, int]:
    """Checks that a list has three exponents from 0 to 4, and returns them.

    Raises:
        ValueError: it does not.
    """
    if len(value) != 3 or any(type(power) is not int or not 0 <= power <= 4 for power in value):
        raise ValueError("exponents")
    return tuple(value)
