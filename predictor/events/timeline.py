"""Running sums of live bytes: the peak, the buffers alive at it, and the peak as a closed form over shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from predictor.common.gpus import Gpu
from predictor.events.events import FACTORS, MOMENTS, PART, EventList, Factor, Moment, rows_at
from predictor.events.sizes import Monomial, Shape, SizeTable, Term


def running_sum(events: EventList, row_bytes: np.ndarray) -> np.ndarray:
    """``int64[events]``: live bytes after each event, given the bytes of every size row."""
    change = rows_at(rows_at(row_bytes, events.buffers.size), events.buffer)
    change *= events.sign
    return np.cumsum(change, out=change)


def alive_buffers(events: EventList, index: int) -> np.ndarray:
    """Rows of ``events.buffers`` that are alive after the event at ``index``."""
    past, sign = events.buffer[: index + 1], events.sign[: index + 1]
    alive = np.zeros(len(events.buffers), dtype=bool)
    for start in range(0, len(past), PART):  # in order, so the last event of a buffer decides
        part = slice(start, start + PART)
        changes = sign[part] != 0
        alive[past[part][changes]] = sign[part][changes] > 0
    return np.flatnonzero(alive)


def highest_events(events: EventList, live: np.ndarray) -> Iterator[tuple[Moment, int]]:
    """For each moment that occurs, the index of the event with the most live bytes (the first if several are equal)."""
    for number, moment in enumerate(MOMENTS):
        mask = events.moment == number
        if mask.any():
            yield moment, int(np.argmax(mask & (live == live.max(where=mask, initial=-1))))


def highest_by_moment(live: np.ndarray, step: np.ndarray, moment: np.ndarray) -> dict[tuple[int, Moment], int]:
    """For each moment of each step, the event after which most bytes are live (the first if several are equal).

    Bytes that are live when a moment begins count for it too, so the event may be the last one before the moment.

    Args:
        live: live bytes after each event.
        step: step of each event.
        moment: index into :data:`predictor.events.events.MOMENTS` of each event.
    """
    begins = np.flatnonzero(np.append(True, (step[1:] != step[:-1]) | (moment[1:] != moment[:-1])))
    result: dict[tuple[int, Moment], int] = {}
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(live)]):
        at = begin + int(np.argmax(live[begin:end]))
        if begin and live[begin - 1] > live[at]:
            at = begin - 1
        place = int(step[begin]), MOMENTS[moment[begin]]
        if place not in result or live[at] > live[result[place]]:
            result[place] = at
    return result


def by_factor(events: EventList, row_bytes: np.ndarray) -> dict[Factor, np.ndarray]:
    """Live bytes of each factor after each event; they add up to :func:`running_sum`."""
    change = row_bytes[events.size_row] * events.sign
    factor = events.buffers.factor[events.buffer]
    return {name: np.cumsum(np.where(factor == number, change, 0)) for number, name in enumerate(FACTORS)}


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """``peak_requested_bytes`` as the maximum of a few hundred size rows.

    Attributes:
        sizes: one row for each prefix sum of the events that no other prefix sum dominates.
        index: the event after which each row is the sum of live bytes.
    """

    sizes: SizeTable
    index: np.ndarray

    def peaks(self, batch: np.ndarray, sequence: np.ndarray, images: np.ndarray, gpu: Gpu) -> np.ndarray:
        """Peak requested bytes at many shapes, ``int64[points]``; shapes must be of one regime."""
        rows = self.sizes.coefficients.astype(np.float64)
        result = np.empty(len(batch), dtype=np.int64)
        for start in range(0, len(batch), 16384):
            part = slice(start, start + 16384)
            values = self.sizes.term_values(batch[part], sequence[part], images[part], gpu)
            result[part] = (rows @ values).max(axis=0)
        return result


def closed_form(events: EventList, *, at_least: Shape) -> ClosedForm:
    """All prefix sums of a composed run that can be the peak at a shape of at least ``at_least``.

    Sums are rewritten in ``shape - at_least``, which is not negative. A sum is left out if another sum has no smaller
    coefficient in any term: the other one is then at least as large at every shape.
    """
    table, size_row, sign = events.sizes, events.size_row, events.sign.astype(np.int64)
    # Of consecutive allocations, only the last can be a peak.
    tops = np.flatnonzero((sign > 0) & np.append(sign[1:] <= 0, True))
    shifted = (table.coefficients @ shift(table.terms, at_least)).T
    sums = np.stack([np.cumsum(row_bytes[size_row] * sign)[tops] for row_bytes in shifted if row_bytes.any()])
    order = np.argsort(-sums.sum(axis=0), kind="stable")  # of equal sums the first comes first, and the others go
    tops, sums = tops[order], sums[:, order]
    kept: list[int] = []
    while tops.size:
        kept.append(int(tops[0]))
        higher = (sums > sums[:, :1]).any(axis=0)
        tops, sums = tops[higher], sums[:, higher]
    index = np.sort(np.array(kept, dtype=np.int64))
    alive = np.cumsum([np.bincount(size_row[start:end], sign[start:end], len(table))
                       for start, end in zip([0, *index + 1], index + 1)], axis=0)
    rows = alive.astype(np.int64) @ table.coefficients
    used = rows.any(axis=0)
    used[0] = True  # the constant stays first
    terms = tuple(term for term, needed in zip(table.terms, used) if needed)
    return ClosedForm(SizeTable(terms, rows[:, used]), index)


def shift(terms: Sequence[Term], lower: Shape) -> np.ndarray:
    """Matrix that rewrites size rows in ``symbol - lower bound``. A workspace stays one term, as it only grows.

    Columns of the result are the workspaces, then the constant, then the other monomials.
    """
    workspaces = dict.fromkeys(term for term in terms if not isinstance(term, Monomial))
    powers = zip(*(term.exponents for term in terms if isinstance(term, Monomial)))
    monomials = product(*(range(max(of_symbol) + 1) for of_symbol in powers))
    columns = {term: column for column, term in enumerate((*workspaces, *monomials))}
    matrix = np.zeros((len(terms), len(columns)), dtype=np.int64)
    for row, term in enumerate(terms):
        for part, factor in (_shifted(term, lower) if isinstance(term, Monomial) else {term: 1}).items():
            matrix[row, columns[part]] += factor
    return matrix


Coefficients = dict[tuple[int, ...], int]
"""A polynomial: exponents of each monomial -> its coefficient."""


def _shifted(monomial: Monomial, lower: Shape) -> Coefficients:
    """The monomial rewritten in ``symbol - lower bound``."""
    result: Coefficients = {(0, 0, 0): 1}
    for axis, (power, bound) in enumerate(zip(monomial.exponents, lower)):
        for _ in range(power):
            result = _times(result, axis, bound)
    return result


def _times(polynomial: Coefficients, axis: int, bound: int) -> Coefficients:
    """The polynomial multiplied by ``(symbol + bound)``."""
    result: Coefficients = {}
    for exponents, factor in polynomial.items():
        raised = tuple(e + (a == axis) for a, e in enumerate(exponents))
        result[raised] = result.get(raised, 0) + factor
        result[exponents] = result.get(exponents, 0) + factor * bound
    return result
