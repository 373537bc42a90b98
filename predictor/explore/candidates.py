"""The closed form of an engine: the sums of sizes that can be the highest of all ranks at some shape.

With them the page finds the worst rank of a setting, and the requested peak of every cell of its map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from predictor.events import timeline
from predictor.events.events import EventList
from predictor.events.sizes import Monomial, Shape, SizeTable


@dataclass(frozen=True, eq=False)
class Candidates:
    """Live bytes after events of the steps, as coefficients of the traced list's terms.

    Attributes:
        rank: ``int64[rows]``, the rank of each row.
        coefficients: ``int64[rows, terms]``.
    """

    rank: np.ndarray
    coefficients: np.ndarray


def candidates(runs: Mapping[int, EventList], lowest: Shape) -> Candidates:
    """The candidates of the ranks' runs, in order of rank.

    Rows that are never the highest are left out. Of equal rows, only that of the first rank stays.

    Args:
        lowest: lower bound of each symbol over all shapes of the regime.
    """
    first = next(iter(runs.values()))
    start, terms = start_up(first)[-1], first.sizes.terms
    ranks, rows = [], []
    known: dict[int, np.ndarray] = {}  # ranks may share one run
    for rank, run in runs.items():
        if id(run) not in known:
            form = timeline.closed_form(_steps(run), at_least=lowest)
            known[id(run)] = _over(form.sizes, terms) + np.eye(1, len(terms), dtype=np.int64) * start
            ranks.append(np.full(len(form.index), rank))
            rows.append(known[id(run)])
    row_ranks, sums = np.concatenate(ranks), np.concatenate(rows)
    constant = sum(not isinstance(term, Monomial) for term in terms)
    kept = _front(sums @ timeline.shift(terms, lowest), row_ranks, constant)
    return Candidates(row_ranks[kept], sums[kept])


def start_up(run: EventList) -> np.ndarray:
    """Live bytes after each event of start-up. They do not depend on the shape."""
    sizes = run.sizes.coefficients[run.size_row, 0]
    return np.cumsum((sizes * run.sign)[run.step == 0])


def _steps(run: EventList) -> EventList:
    """The run without start-up."""
    later = run.step > 0
    return replace(run, kind=run.kind[later], buffer=run.buffer[later], moment=run.moment[later], step=run.step[later])


def _over(table: SizeTable, terms: tuple) -> np.ndarray:
    """The rows of a size table, with a column for each of ``terms``."""
    rows = np.zeros((len(table), len(terms)), dtype=np.int64)
    rows[:, [terms.index(term) for term in table.terms]] = table.coefficients
    return rows


def _front(rows: np.ndarray, rank: np.ndarray, constant: int) -> np.ndarray:
    """Indices of the rows that no other row dominates.

    A row dominates another if it is at least as large in every term. To dominate a row of an earlier rank, it must also
    be larger in the constant.

    Args:
        rows: coefficients of terms in ``symbol - lower bound``, so that all terms grow with the shape.
        constant: column of the constant term.
    """
    number, kept = np.arange(len(rows)), []
    for row in range(len(rows)):
        tie = np.where(rank == rank[row], (rows > rows[row]).any(axis=1) | (number < row),
                       (rank < rank[row]) | (rows[:, constant] > rows[row, constant]))
        if not ((rows >= rows[row]).all(axis=1) & tie).any():
            kept.append(row)
    return np.array(kept)
