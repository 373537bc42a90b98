"""Fits buffer sizes as functions of the shape, from a few recorded shapes.

The fit is exact if a simple expression explains the sizes. The first expression that is exact at every shape wins,
with at least one shape more than coefficients: polynomials with few terms, then with more; then the same with the
sequence rounded up, as some kernels do. Other sizes are interpolated linearly, and the error at left-out shapes is
stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from predictor.events.regimes import NotOneRegime
from predictor.events.sizes import CONSTANT, CONSTANT_TERM, Monomial, Shape, SizeTable, Term
from predictor.formula.fit import solver
from predictor.formula.learned_terms import Interpolated, Rounded

LADDER: tuple[tuple[tuple[int, int, int], ...], ...] = (
    (CONSTANT,),
    (CONSTANT, (0, 0, 1)), (CONSTANT, (1, 0, 0)), (CONSTANT, (0, 1, 0)), (CONSTANT, (1, 1, 0)),
    (CONSTANT, (1, 0, 0), (0, 0, 1)), (CONSTANT, (1, 0, 0), (1, 1, 0)), (CONSTANT, (0, 1, 0), (1, 1, 0)),
    (CONSTANT, (1, 1, 0), (0, 0, 1)), (CONSTANT, (0, 1, 0), (0, 2, 0)), (CONSTANT, (1, 0, 0), (2, 0, 0)),
    (CONSTANT, (1, 1, 0), (1, 2, 0)),
    (CONSTANT, (1, 0, 0), (0, 1, 0), (1, 1, 0)),
    (CONSTANT, (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1)),
    (CONSTANT, (1, 0, 0), (1, 1, 0), (1, 2, 0)),
    (CONSTANT, (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 2, 0), (1, 2, 0)),
    (CONSTANT, (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 2, 0), (1, 2, 0), (0, 0, 1)),
)
"""Exponents of batch, sequence and images of each polynomial, in the order in which they are tried."""
MULTIPLES = (8, 16, 32, 64, 128, 256)
"""Multiples to which kernels round the sequence up."""
SCALARS = ((1, 1, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 2, 0), (0, 2, 0), (2, 0, 0))
"""Candidate scalars for interpolation. The one with the smallest error wins, the first among equals."""


@dataclass(frozen=True)
class Guess:
    """An interpolated size. ``error_bytes`` is the largest error at a left-out shape; None if it could not be tested.
    """

    term: Interpolated
    error_bytes: int | None


Expression = dict[Term, int]


class Fitted(NamedTuple):
    """A table of sizes, the row of each buffer, and the rows that are guesses."""

    row_of: np.ndarray
    table: SizeTable
    guesses: dict[int, Guess]


def fit(versions: Sequence[tuple[int, ...]], shapes: Sequence[Shape]) -> Fitted:
    """Fits the sizes of buffers. ``versions`` holds the bytes of each buffer at every shape."""
    explain = _Explainer(shapes)
    rows: dict[tuple[int, ...], int] = {}
    expressions: list[Expression] = []
    guesses: dict[int, Guess] = {}
    row_of = np.empty(len(versions), dtype=np.int32)
    for index, sizes in enumerate(versions):
        if sizes not in rows:
            rows[sizes] = len(expressions)
            expression = explain(sizes)
            if isinstance(expression, Guess):
                guesses[rows[sizes]] = expression
                expression = {expression.term: 1}
            expressions.append(expression)
        row_of[index] = rows[sizes]
    return Fitted(row_of, _table(expressions), guesses)


class _Explainer:
    def __init__(self, shapes: Sequence[Shape]) -> None:
        self._shapes = list(shapes)
        self._solvers: list[tuple[Any, int | None]] = [(solve, None) for solve in self._solvers_for(shapes)]
        if len({shape.sequence for shape in shapes}) > 1:
            seen = {tuple(shape.sequence for shape in shapes)}
            for multiple in MULTIPLES:
                rounded = [Shape(b, -(-s // multiple) * multiple, i) for b, s, i in shapes]
                key = tuple(shape.sequence for shape in rounded)
                if key not in seen and len(set(key)) > 1:
                    seen.add(key)
                    self._solvers += [(solve, multiple) for solve in self._solvers_for(rounded)]

    @staticmethod
    def _solvers_for(shapes: Sequence[Shape]) -> list:
        """Solvers for the polynomials of the ladder that these shapes can determine and check."""
        solvers, seen = [], set()
        for exponents in LADDER:
            monomials = tuple(_varying(exponents, shapes))
            if monomials in seen or len(monomials) >= max(len(shapes), 2):
                continue
            seen.add(monomials)
            try:
                solvers.append(solver(shapes, [Monomial(e) for e in monomials]))
            except ValueError:
                continue
        return solvers

    def __call__(self, sizes: tuple[int, ...]) -> Expression | Guess:
        for solve, multiple in self._solvers:
            try:
                polynomial = solve(sizes)
            except NotOneRegime:
                continue
            return {_term(exponents, multiple): factor for exponents, factor in polynomial.parts}
        return _guess(sizes, self._shapes)


def _varying(exponents: Sequence[tuple[int, int, int]], shapes: Sequence[Shape]) -> list[tuple[int, int, int]]:
    """Exponents that the shapes can distinguish. A symbol that does not vary drops out."""
    varies = [len({tuple(shape)[axis] for shape in shapes}) > 1 for axis in range(3)]
    if len({shape.images / shape.batch for shape in shapes}) == 1:
        varies[2] = False  # images follow the batch
    b, s, i = varies
    return list(dict.fromkeys((e[0] * b, e[1] * s, e[2] * i) for e in exponents))


def _term(exponents: tuple[int, int, int], multiple: int | None) -> Term:
    return Monomial(exponents) if multiple is None or not exponents[1] else Rounded(exponents, multiple)


def _guess(sizes: tuple[int, ...], shapes: Sequence[Shape]) -> Guess:
    """Linear interpolation over the scalar with the smallest error at left-out shapes."""
    best: Guess | None = None
    for over in SCALARS:
        pairs = sorted({(int(Monomial(over)(shape)), size) for shape, size in zip(shapes, sizes)})
        if len(pairs) < 2 or len({x for x, _ in pairs}) < len(pairs):
            continue  # the scalar does not vary, or one of its values has two sizes
        inner = range(1, len(pairs) - 1)
        errors = [abs(Interpolated(over, tuple(pairs[:k] + pairs[k + 1:])).between(pairs[k][0]) - pairs[k][1])
                  for k in inner]
        guess = Guess(Interpolated(over, tuple(pairs)), max(errors, default=None))
        if best is None or (guess.error_bytes is not None
                            and (best.error_bytes is None or guess.error_bytes < best.error_bytes)):
            best = guess
    if best is None:  # shapes that no scalar distinguishes have different sizes: take the largest
        over = SCALARS[0]
        largest: dict[int, int] = {}
        for shape, size in zip(shapes, sizes):
            value = int(Monomial(over)(shape))
            largest[value] = max(size, largest.get(value, 0))
        points = tuple(sorted(largest.items()))
        points = points if len(points) > 1 else (*points, (points[0][0] + 1, points[0][1]))
        best = Guess(Interpolated(over, points), max(sizes) - min(sizes))
    return best


def _table(expressions: Sequence[Expression]) -> SizeTable:
    terms: dict[Term, int] = {CONSTANT_TERM: 0}
    for expression in expressions:
        for term in expression:
            terms.setdefault(term, len(terms))
    coefficients = np.zeros((len(expressions), len(terms)), dtype=np.int64)
    for row, expression in enumerate(expressions):
        for term, factor in expression.items():
            coefficients[row, terms[term]] = factor
    return SizeTable(tuple(terms), coefficients)
