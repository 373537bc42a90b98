"""Sizes of buffers as functions of the shape. A whole training step needs a few hundred rows.

A row is an integer combination of terms. A term is a monomial of batch, sequence and images, or a
workspace: a small function (``predictor.events.workspaces``) of dimensions that are themselves polynomials
of the shape. Evaluation is exact in integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from predictor.common.errors import InputError
from predictor.events import workspaces

if TYPE_CHECKING:
    from predictor.common.gpus import Gpu

SYMBOLS = ("batch", "sequence", "images")
CONSTANT = (0, 0, 0)


@dataclass(frozen=True)
class Shape:
    """The shape of one micro-batch: samples, tokens of each sample in the language model, images of all samples."""

    batch: int
    sequence: int
    images: int

    def __iter__(self) -> Iterator[int]:
        return iter((self.batch, self.sequence, self.images))

    @classmethod
    def packed(cls, batch: int, tokens: int, images: int) -> Shape:
        """The shape of samples that share a row of so many tokens; its ``sequence`` is their mean, maybe a fraction.

        Sizes depend on the number of samples and on the sum of their tokens (:data:`predictor.formula.fit.PACKED`),
        which stays a whole number.
        """
        return cls(batch, cast(int, Fraction(tokens, batch)), images)


@dataclass(frozen=True)
class Monomial:
    """``batch**i * sequence**j * images**k``."""

    exponents: tuple[int, int, int]

    def __call__(self, shape, gpu=None) -> np.ndarray | int:
        # numpy computes the power 0 of an array as slowly as any other
        value = math.prod(symbol if power == 1 else symbol**power
                          for symbol, power in zip(shape, self.exponents) if power)
        return _whole(value) if isinstance(value, Fraction) else value

    def __str__(self) -> str:
        powers = [f"{name}^{power}" if power > 1 else name
                  for name, power in zip(SYMBOLS, self.exponents) if power]
        return "·".join(powers) or "1"


def _whole(value: Fraction) -> int:
    """The number of something at a mean length: a whole one.

    Raises:
        ValueError: it is not whole, so it depends on more than the sum of the lengths.
    """
    if value.denominator != 1:
        raise ValueError(f"{value} is no whole number")
    return value.numerator


@dataclass(frozen=True)
class Polynomial:
    """Integer combination of monomials, as pairs of exponents and coefficient."""

    parts: tuple[tuple[tuple[int, int, int], int], ...]

    def __call__(self, shape) -> np.ndarray | int:
        """The value at one shape, or at arrays of shapes; a plain integer if the polynomial is constant."""
        return sum((factor if exponents == CONSTANT else Monomial(exponents)(shape) * factor
                    for exponents, factor in self.parts), 0)

    def __str__(self) -> str:
        return "+".join(str(factor) if exponents == CONSTANT else
                        (f"{factor}·" if factor != 1 else "") + str(Monomial(exponents))
                        for exponents, factor in self.parts) or "0"


@dataclass(frozen=True)
class Workspace:
    """Bytes by a named function of :mod:`predictor.events.workspaces`, from the GPU and polynomials of the shape."""

    function: str
    dimensions: tuple[Polynomial, ...]

    def __call__(self, shape, gpu) -> np.ndarray | int:
        return self.of(gpu, *(dimension(shape) for dimension in self.dimensions))

    def of(self, gpu, *dimensions: np.ndarray | int) -> np.ndarray | int:
        """Bytes for given dimensions."""
        return workspaces.FUNCTIONS[self.function](gpu, *dimensions)

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.dimensions))})"


class Term(Protocol):
    """One summand of a size: hashable, callable, and readable as text. Learned formulas have terms of their own."""

    def __call__(self, shape, gpu) -> np.ndarray | int:
        """The value at a shape, or at arrays of shapes."""

    def __hash__(self) -> int: ...


CONSTANT_TERM = Monomial(CONSTANT)


@dataclass(frozen=True, eq=False)
class SizeTable:
    """Rows of sizes over shared terms.

    Attributes:
        terms: one for each column; the first is the constant 1.
        coefficients: ``int64[rows, terms]``, bytes per unit of the term.
    """

    terms: tuple[Term, ...]
    coefficients: np.ndarray

    @staticmethod
    def constants(sizes: Sequence[int]) -> SizeTable:
        """A table of plain byte counts."""
        return SizeTable((CONSTANT_TERM,), np.asarray(sizes, dtype=np.int64).reshape(-1, 1))

    def __len__(self) -> int:
        return len(self.coefficients)

    def with_constants(self, sizes: Sequence[int]) -> SizeTable:
        """This table with rows of plain byte counts appended."""
        rows = np.zeros((len(sizes), len(self.terms)), dtype=np.int64)
        rows[:, 0] = sizes
        return SizeTable(self.terms, np.concatenate([self.coefficients, rows]))

    def at(self, shape: Shape, gpu: Gpu) -> np.ndarray:
        """Bytes of every row at one shape, ``int64[rows]``."""
        return self.coefficients @ _values(self.terms, shape, gpu)

    def largest(self, shape: Shape, gpu: Gpu) -> float:
        """Bytes of the largest row, in floating point: approximate, but without overflow."""
        return float((self.coefficients.astype(float) @ _values(self.terms, shape, gpu).astype(float)).max())

    def term_values(self, batch: np.ndarray, sequence: np.ndarray, images: np.ndarray, gpu: Gpu) -> np.ndarray:
        """Value of each term at many points, ``float64[terms, points]`` (exact below 2**53)."""
        shape, together = (batch, sequence, images), dict[tuple, tuple]()

        def value(term: Term) -> np.ndarray | int:
            if not isinstance(term, Workspace) or term.function not in workspaces.TOGETHER:
                return term(shape, gpu)
            function, place = workspaces.TOGETHER[term.function]
            key = function, term.dimensions
            if key not in together:
                together[key] = function(gpu, *(dimension(shape) for dimension in term.dimensions))
            return together[key][place]

        return np.stack([np.broadcast_to(np.asarray(value(term), dtype=np.float64), batch.shape)
                         for term in self.terms])


@lru_cache(maxsize=256)
def _values(terms: tuple[Term, ...], shape: Shape, gpu: Gpu) -> np.ndarray:
    """Value of each term at a shape. It is cached, because it is the same for every rank.

    Raises:
        InputError: a term has no value there, which happens in damaged formulas only.
    """
    try:
        return np.array([int(term(shape, gpu)) for term in terms], dtype=np.int64)
    except (ArithmeticError, LookupError, TypeError, ValueError, StopIteration) as error:  # dimensions of no call
        raise InputError(f"the formula has a size without a value at this shape ({type(error).__name__}): it is "
                         "damaged; learn it again, or clear the cache") from None
