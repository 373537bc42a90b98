"""Matches recorded allocations with predicted ones by order and size, within each moment of each step.

First, as many pairs as possible have the same size. Then, as many of the remaining ones as possible are the same call
with another size. Among equal choices, module and operator decide, and then lifetimes.

The predictor uses its own names for engines and optimizers (``zero::flatten``), not the names of the aten operators
that allocate for them. Such a name matches any operator of the same size. With another size, it matches only an
operator that it stood for elsewhere in the same job, so the alignment runs twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from calibrate.attribution.allocations import JobAllocations

BLOCK = 2048
"""The most allocations per side that one exact alignment handles."""
SAME_OPERATOR, SAME_MODULE, SAME_SIZE = 4 * BLOCK, 2 * BLOCK, BLOCK
"""Weights of a pair: an equal operator outweighs everything else. A pair of different sizes weighs 1."""
UNMATCHED, FOREVER = -1, np.iinfo(np.int64).max

Pairs = list[tuple[int, int]]


class Names:
    """Sizes, operators and modules of both sides as comparable integers, indexed by allocation."""

    def __init__(self, recorded: JobAllocations, predicted: JobAllocations) -> None:
        numbers: dict[str, int] = {}

        def column(names: Sequence[str]) -> np.ndarray:
            return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)

        self.recorded, self.predicted = recorded, predicted
        self.operators = column(recorded.operator), column(predicted.operator)
        self.modules = column(recorded.module), column(predicted.module)
        self.engine = np.array(["aten::" not in name for name in predicted.operator], dtype=bool)
        self.alike = np.eye(len(numbers), dtype=bool)
        keys: dict[tuple[int, ...], int] = {}
        self.keys = tuple([keys.setdefault(key, len(keys)) for key in zip(*(c.tolist() for c in columns))]
                          for columns in zip((recorded.bytes, predicted.bytes), self.operators, self.modules))

    def learn(self, partner: np.ndarray) -> None:
        """Learn from pairs of the same size which operators the engines' names stand for."""
        rows = np.flatnonzero(partner != UNMATCHED)
        rows = rows[self.engine[partner[rows]] & (self.recorded.bytes[rows] == self.predicted.bytes[partner[rows]])]
        self.alike[self.operators[0][rows], self.operators[1][partner[rows]]] = True

    def weights(self, row: int, columns: np.ndarray) -> np.ndarray:
        """How well a recorded allocation agrees with predicted ones; 0 where they cannot be a pair."""
        name, names = self.operators[0][row], self.operators[1][columns]
        operator, module = name == names, self.modules[0][row] == self.modules[1][columns]
        size = self.recorded.bytes[row] == self.predicted.bytes[columns]
        same = size & (operator | module | self.engine[columns])
        return np.where(same, SAME_SIZE + SAME_OPERATOR * operator + SAME_MODULE * module,
                        ~size & module & self.alike[name, names])


def align(recorded: JobAllocations, predicted: JobAllocations) -> np.ndarray:
    """``int64[recorded]``: the predicted partner of each recorded allocation, or -1."""
    names = Names(recorded, predicted)
    recorded_groups, predicted_groups = recorded.groups(), predicted.groups()
    groups = [(rows.tolist(), predicted_groups[at].tolist()) for at, rows in recorded_groups.items()
              if at in predicted_groups]
    names.learn(_align(names, groups))
    partner = _align(names, groups)
    _by_lifetime(names, partner)
    return partner


def _align(names: Names, groups: Iterable[tuple[list[int], list[int]]]) -> np.ndarray:
    partner = np.full(len(names.recorded), UNMATCHED, dtype=np.int64)
    for rows, columns in groups:
        for row, column in _group(names, rows, columns):
            partner[row] = column
    return partner


# --- pairs, in order --------------------------------------------------------------------------------


def _group(names: Names, rows: list[int], columns: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs of one step and moment: unique keys first, then the allocations between them."""
    last = (0, 0)
    recorded_keys, predicted_keys = ([names.keys[side][i] for i in members]
                                     for side, members in enumerate((rows, columns)))
    for anchor in [*_anchors(recorded_keys, predicted_keys), (len(rows), len(columns))]:
        yield from _window(names, rows[last[0]:anchor[0]], columns[last[1]:anchor[1]])
        if anchor[0] < len(rows):
            yield rows[anchor[0]], columns[anchor[1]]
        last = anchor[0] + 1, anchor[1] + 1


def _anchors(recorded_keys: Sequence[int], predicted_keys: Sequence[int]) -> Pairs:
    """Positions of keys that occur once on both sides, in the longest common order."""
    recorded_count, predicted_count = Counter(recorded_keys), Counter(predicted_keys)
    at = {key: position for position, key in enumerate(predicted_keys)}
    unique = [(position, at[key]) for position, key in enumerate(recorded_keys)
              if recorded_count[key] == 1 and predicted_count[key] == 1]
    ends: list[int] = []  # smallest last column of an increasing sequence, by its length
    tails: list[int] = []
    before: list[int] = []
    for index, (_, column) in enumerate(unique):
        length = bisect_left(ends, column)
        before.append(tails[length - 1] if length else UNMATCHED)
        ends[length:length + 1], tails[length:length + 1] = [column], [index]
    index, anchors = tails[-1] if tails else UNMATCHED, []
    while index != UNMATCHED:
        anchors.append(unique[index])
        index = before[index]
    return anchors[::-1]


def _window(names: Names, rows: list[int], columns: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs between two anchors. Long stretches are aligned block by block, and the first half of each block is kept.
    """
    i = j = 0
    while i < len(rows) and j < len(columns):
        if names.keys[0][rows[i]] == names.keys[1][columns[j]]:
            yield rows[i], columns[j]
            i, j = i + 1, j + 1
            continue
        row_block, column_block = rows[i:i + BLOCK], columns[j:j + BLOCK]
        whole = len(rows) - i <= BLOCK and len(columns) - j <= BLOCK
        pairs = _best(names, row_block, column_block)
        if whole:
            yield from pairs
            return
        middle = row_block[len(row_block) // 2], column_block[len(column_block) // 2]
        pairs = [pair for pair in pairs if pair[0] < middle[0] and pair[1] < middle[1]]
        yield from pairs
        last = pairs[-1] if pairs else (middle[0] - 1, middle[1] - 1)
        i, j = bisect_left(rows, last[0] + 1), bisect_left(columns, last[1] + 1)


def _best(names: Names, rows: list[int], columns: list[int]) -> Pairs:
    """The ordered pairs with the largest total weight; among equals, those of the earliest recorded allocations."""
    column_array = np.array(columns)
    table = np.zeros((len(rows) + 1, len(columns) + 1), dtype=np.int32)
    for i, row in enumerate(rows, 1):
        weight = names.weights(row, column_array)
        paired = np.where(weight > 0, table[i - 1, :-1] + weight, 0)
        np.maximum.accumulate(np.maximum(table[i - 1, 1:], paired), out=table[i, 1:])
    i, j, pairs = len(rows), len(columns), []
    while i and j:
        if table[i, j] == table[i - 1, j]:
            i -= 1
        elif table[i, j] == table[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((rows[i], columns[j]))
    return pairs[::-1]


# --- lifetimes -----------------------------------------------------------------------------------


def ends(side: JobAllocations, number: np.ndarray) -> np.ndarray:
    """``int64[n]``: the end of each allocation, as the ``number`` of the last matched allocation before it (-1: none).

    An allocation that lives when the last matched one comes counts as living forever, because frees at the end of the
    process mean nothing.

    Args:
        number: number of each allocation, common to both sides; -1 if it is not matched.
    """
    matched = np.flatnonzero(number != UNMATCHED)
    before = np.searchsorted(side.born[matched], side.died)
    return np.where(before == len(matched), FOREVER, np.append(UNMATCHED, number[matched])[before])


def both_ends(recorded: JobAllocations, predicted: JobAllocations,
              partner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """:func:`ends` of the recorded and the predicted side. Matched allocations have their predicted number."""
    number = np.full(len(predicted), UNMATCHED, dtype=np.int64)
    taken = partner[partner != UNMATCHED]
    number[taken] = taken
    return ends(recorded, partner), ends(predicted, number)


def call_stretches(side: JobAllocations) -> np.ndarray:
    """``int64[n]``: a number for each stretch of allocations by one operator of one module in one moment."""
    keys = list(zip(side.operator, side.module, side.moment[side.born].tolist(), side.step[side.born].tolist()))
    starts = [key != following for key, following in zip(keys, keys[1:])]
    return np.cumsum([0, *starts])[:len(keys)]


def _by_lifetime(names: Names, partner: np.ndarray) -> None:
    """Swap partners within a row of equal sizes, so that lifetimes agree too.

    Not every buffer of the row may be predicted, and only their ends show which ones are. A row is made by one call or,
    for the names of engines, has no other predicted allocation in between.
    """
    recorded_ends, predicted_ends = (column.tolist() for column in both_ends(names.recorded, names.predicted, partner))
    call, gap = call_stretches(names.recorded).tolist(), np.cumsum(partner != UNMATCHED).tolist()
    sizes = names.recorded.bytes.tolist()
    candidates: dict[tuple[int, bool, int, int], list[int]] = {}  # place, size and predicted end -> recorded rows
    for row, column in enumerate(partner.tolist()):
        if column != UNMATCHED and recorded_ends[row] != predicted_ends[column]:
            places = [(gap[row], True), (gap[row] - 1, True)] if names.engine[column] else [(call[row], False)]
            for place in places:
                candidates.setdefault((*place, sizes[row], predicted_ends[column]), []).append(row)
    for row in np.flatnonzero(partner == UNMATCHED).tolist():
        for place in ((call[row], False), (gap[row], True)):
            others = [other for other in candidates.get((*place, sizes[row], recorded_ends[row]), ())
                      if partner[other] != UNMATCHED]
            if others:
                partner[row], partner[others[0]] = partner[others[0]], UNMATCHED
                break
