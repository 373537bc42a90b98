"""Running sums of live bytes: the peak, the buffers alive at it, and the peak as a closed form over shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from predictor.common.gpus import Gpu
from predictor.events.events import FACTORS, MOMENTS, PART, EventList, Factor, Moment, rows_at, sign
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


def by_factor(events: EventList, row_bytes: np.ndarray, places: Sequence[int]) -> dict[Factor, np.ndarray]:
    """Live bytes of each factor after the events at these places, ``int64[places]``.

    They add up to :func:`running_sum`.
    """
    def change(part: slice) -> np.ndarray:
        buffer = events.buffer[part]
        # exact in float64: sums up to each event are live bytes, far below 2**53
        return np.bincount(events.buffers.factor[buffer],
                           row_bytes[events.buffers.size[buffer]] * sign(events.kind[part]), len(FACTORS))

    return dict(zip(FACTORS, _sums_after(np.asarray(places), change).T))


def _sums_after(places: np.ndarray, change: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Sums of changes up to each of these events, ``int64[places, n]``.

    Long runs are read in parts, because columns of all events can take a gigabyte.

    Args:
        change: gives the ``n`` sums of a part of the events.
    """
    ends = np.union1d(places + 1, np.arange(0, places.max(), EVENTS_AT_ONCE)[1:])
    sums = np.cumsum([change(slice(begin, end)) for begin, end in zip([0, *ends], ends)], axis=0)
    return sums[np.searchsorted(ends, places + 1)].astype(np.int64)


EVENTS_AT_ONCE = 1 << 19
"""Events of a run that are looked at together."""


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
    table = events.sizes
    shifted = (table.coefficients @ shift(table.terms, at_least)).T
    index = _not_dominated(events, shifted[shifted.any(axis=1)])
    alive = _sums_after(index, lambda part: np.bincount(events.buffers.size[events.buffer[part]],
                                                        sign(events.kind[part]), len(table)))
    rows = alive @ table.coefficients
    used = rows.any(axis=0)
    used[0] = True  # the constant stays first
    terms = tuple(term for term, needed in zip(table.terms, used) if needed)
    return ClosedForm(SizeTable(terms, rows[:, used]), index)


def _not_dominated(events: EventList, coefficients: np.ndarray) -> np.ndarray:
    """The events after which the sum of live bytes has no other that is at least as large in each coefficient.

    Of equal sums the first is one. Long runs are read in parts, because all sums together can take a gigabyte.

    Args:
        coefficients: ``int64[terms, rows]``, those of each size.
    """
    sums, tops = np.zeros((len(coefficients), 0), np.int64), np.zeros(0, np.int64)
    live = np.zeros((len(coefficients), 1), np.int64)
    for begin in range(0, len(events), EVENTS_AT_ONCE):
        part = slice(begin, begin + EVENTS_AT_ONCE)
        change, following = sign(events.kind[part]), sign(events.kind[begin + 1 : begin + EVENTS_AT_ONCE + 1])
        size_row = events.buffers.size[events.buffer[part]]
        # Of consecutive allocations, only the last can be a peak.
        last = np.flatnonzero((change > 0) & np.append(following <= 0, np.ones(len(change) - len(following), bool)))
        new = [live[row] + np.cumsum(of_row[size_row] * change.astype(np.int64))
               for row, of_row in enumerate(coefficients)]
        live = np.array([[column[-1]] for column in new])
        tops, sums = _highest(np.append(tops, last + begin),
                              np.append(sums, [column[last] for column in new], axis=1))
    return tops


def _highest(tops: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of columns of sums, with their events, those that no other dominates, in the same order."""
    order = np.argsort(-sums.sum(axis=0), kind="stable")  # of equal sums the first comes first, and the others go
    kept: list[int] = []
    while order.size:
        kept.append(int(order[0]))
        order = order[(sums[:, order] > sums[:, kept[-1:]]).any(axis=0)]
    kept.sort()
    return tops[kept], sums[:, kept]


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
