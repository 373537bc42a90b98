"""Which recorded allocation is which predicted one: by order and size within each moment of each step.

As many as can be are of the same size; then as many as can be of those left are the same call's with
another size. Where several would do, module and operator decide, and between equals their lifetimes.

Engines and optimizers are predicted under names of their own (``zero::flatten``), not those of the aten
operators that allocate for them. Such a name agrees with any operator of the same size, and with another
size only with an operator that it was found to stand for elsewhere in the same job: so all is done twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from calibrate.attribution.allocations import Side

BLOCK = 2048
"""Most allocations a side that one exact alignment takes."""
SAME_OPERATOR, SAME_MODULE, SAME_SIZE = 4 * BLOCK, 2 * BLOCK, BLOCK
"""What agrees in a pair, by weight: an operator outweighs all else. A pair of different sizes weighs 1."""
NOBODY, FOREVER = -1, np.iinfo(np.int64).max

Pairs = list[tuple[int, int]]


class Names:
    """Sizes, operators and modules of both sides as comparable numbers; rows index whole sides."""

    def __init__(self, recorded: Side, predicted: Side) -> None:
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
        """From pairs of the same size: which operators the engines' names stand for."""
        rows = np.flatnonzero(partner != NOBODY)
        rows = rows[self.engine[partner[rows]] & (self.recorded.bytes[rows] == self.predicted.bytes[partner[rows]])]
        self.alike[self.operators[0][rows], self.operators[1][partner[rows]]] = True

    def weights(self, row: int, columns: np.ndarray) -> np.ndarray:
        """How well a recorded allocation agrees with predicted ones; 0 where it cannot be them."""
        name, names = self.operators[0][row], self.operators[1][columns]
        operator, module = name == names, self.modules[0][row] == self.modules[1][columns]
        size = self.recorded.bytes[row] == self.predicted.bytes[columns]
        same = size & (operator | module | self.engine[columns])
        return np.where(same, SAME_SIZE + SAME_OPERATOR * operator + SAME_MODULE * module,
                        ~size & module & self.alike[name, names])


def align(recorded: Side, predicted: Side) -> np.ndarray:
    """``int64[recorded]``: the predicted allocation that each recorded one is, or -1."""
    names = Names(recorded, predicted)
    ours, theirs = recorded.groups(), predicted.groups()
    groups = [(ours[at].tolist(), theirs[at].tolist()) for at in ours if at in theirs]
    names.learn(_align(names, groups))
    partner = _align(names, groups)
    _by_lifetime(names, partner)
    return partner


def _align(names: Names, groups: Iterable[tuple[list[int], list[int]]]) -> np.ndarray:
    partner = np.full(len(names.recorded), NOBODY, dtype=np.int64)
    for rows, columns in groups:
        for row, column in _group(names, rows, columns):
            partner[row] = column
    return partner


# --- pairs, in order --------------------------------------------------------------------------------


def _group(names: Names, rows: list[int], columns: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs of one group: those with a key of their own first, then what lies between them."""
    last = (0, 0)
    ours, theirs = ([names.keys[side][i] for i in members] for side, members in enumerate((rows, columns)))
    for here in [*_anchors(ours, theirs), (len(rows), len(columns))]:
        yield from _window(names, rows[last[0]:here[0]], columns[last[1]:here[1]])
        if here[0] < len(rows):
            yield rows[here[0]], columns[here[1]]
        last = here[0] + 1, here[1] + 1


def _anchors(ours: Sequence[int], theirs: Sequence[int]) -> Pairs:
    """Positions of keys that both sides have once, in the order that most of them keep."""
    count, other = Counter(ours), Counter(theirs)
    at = {key: position for position, key in enumerate(theirs)}
    unique = [(position, at[key]) for position, key in enumerate(ours) if count[key] == 1 and other[key] == 1]
    ends: list[int] = []  # smallest last column of an increasing run, by its length
    tails: list[int] = []
    before: list[int] = []
    for index, (_, column) in enumerate(unique):
        length = bisect_left(ends, column)
        before.append(tails[length - 1] if length else NOBODY)
        ends[length:length + 1], tails[length:length + 1] = [column], [index]
    index, found = tails[-1] if tails else NOBODY, []
    while index != NOBODY:
        found.append(unique[index])
        index = before[index]
    return found[::-1]


def _window(names: Names, rows: list[int], columns: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs between two anchors; long stretches block by block, of which the first half counts."""
    i = j = 0
    while i < len(rows) and j < len(columns):
        if names.keys[0][rows[i]] == names.keys[1][columns[j]]:
            yield rows[i], columns[j]
            i, j = i + 1, j + 1
            continue
        ours, theirs = rows[i:i + BLOCK], columns[j:j + BLOCK]
        whole = len(rows) - i <= BLOCK and len(columns) - j <= BLOCK
        pairs = _best(names, ours, theirs)
        if whole:
            yield from pairs
            return
        middle = ours[len(ours) // 2], theirs[len(theirs) // 2]
        pairs = [pair for pair in pairs if pair[0] < middle[0] and pair[1] < middle[1]]
        yield from pairs
        last = pairs[-1] if pairs else (middle[0] - 1, middle[1] - 1)
        i, j = bisect_left(rows, last[0] + 1), bisect_left(columns, last[1] + 1)


def _best(names: Names, rows: list[int], columns: list[int]) -> Pairs:
    """The pairs, in order on both sides, whose weights come to most; of equals the first recorded ones."""
    among = np.array(columns)
    table = np.zeros((len(rows) + 1, len(columns) + 1), dtype=np.int32)
    for i, row in enumerate(rows, 1):
        weight = names.weights(row, among)
        taken = np.where(weight > 0, table[i - 1, :-1] + weight, 0)
        np.maximum.accumulate(np.maximum(table[i - 1, 1:], taken), out=table[i, 1:])
    i, j, found = len(rows), len(columns), []
    while i and j:
        if table[i, j] == table[i - 1, j]:
            i -= 1
        elif table[i, j] == table[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found.append((rows[i], columns[j]))
    return found[::-1]


# --- lifetimes -----------------------------------------------------------------------------------


def ends(side: Side, number: np.ndarray) -> np.ndarray:
    """``int64[n]``: when each allocation ends, as the ``number`` of the last matched one before (-1: none).

    What lives when the last matched one comes lives forever: if a job still frees it on its way out means nothing.

    Args:
        number: of each allocation, common to both sides; -1 where it is not matched.
    """
    matched = np.flatnonzero(number != NOBODY)
    before = np.searchsorted(side.born[matched], side.died)
    return np.where(before == len(matched), FOREVER, np.append(NOBODY, number[matched])[before])


def both_ends(recorded: Side, predicted: Side, partner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """:func:`ends` of the recorded and of the predicted side, matched ones numbered as predicted."""
    number = np.full(len(predicted), NOBODY, dtype=np.int64)
    taken = partner[partner != NOBODY]
    number[taken] = taken
    return ends(recorded, partner), ends(predicted, number)


def runs(side: Side) -> np.ndarray:
    """``int64[n]``: a number for each stretch of allocations by one operator of one module, in one moment."""
    keys = list(zip(side.operator, side.module, side.moment[side.born].tolist(), side.step[side.born].tolist()))
    new = [one != two for one, two in zip(keys, keys[1:])]
    return np.cumsum([0, *new])[:len(keys)]


def _by_lifetime(names: Names, partner: np.ndarray) -> None:
    """Several buffers of a size come in a row, and not all were predicted: which were, their ends tell.

    In a row: made by one call or, for the names of engines, with nothing else that was predicted between.
    """
    ours, theirs = (column.tolist() for column in both_ends(names.recorded, names.predicted, partner))
    call, gap = runs(names.recorded).tolist(), np.cumsum(partner != NOBODY).tolist()
    sizes, wanted = names.recorded.bytes.tolist(), {}
    for row, column in enumerate(partner.tolist()):
        if column != NOBODY and ours[row] != theirs[column]:
            places = [(gap[row], True), (gap[row] - 1, True)] if names.engine[column] else [(call[row], False)]
            for place in places:
                wanted.setdefault((*place, sizes[row], theirs[column]), []).append(row)
    for row in np.flatnonzero(partner == NOBODY).tolist():
        for place in ((call[row], False), (gap[row], True)):
            others = [other for other in wanted.get((*place, sizes[row], ours[row]), ()) if partner[other] != NOBODY]
            if others:
                partner[row], partner[others[0]] = partner[others[0]], NOBODY
                break
