"""Finds the loops in recordings of few units, and folds recordings of more units to the events of the fewest.

See :mod:`predictor.formula.repeats`. Two recordings show where passes were added, and which copy of a buffer each free
belongs to. Recordings of further units must be what that predicts, event for event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.events.regimes import NotOneRegime
from predictor.formula.repeats import Layout, Repeats, Unrolled, allocations_of, unroll
from predictor.trace.recorder import Recording

WINDOW = 4096
"""Events that are compared at a time, and that must be equal for a block to count as found."""


class Folding:
    """The loops that two recordings show.

    Args:
        recorded: the recording of the fewest units.
        further: the recording with one more unit.
        units: the units of ``recorded``.

    Raises:
        NotOneRegime: the further events are not passes of loops.
    """

    def __init__(self, recorded: Recording, further: Recording, units: int) -> None:
        self._recorded, self._units = recorded, units
        self._described: dict[tuple, int] = {}
        self._codes = self._codes_of(recorded)
        self._events = _array(recorded.events)
        codes = self._codes_of(further)
        blocks = np.array(list(_added_blocks(self._codes, codes)), dtype=np.int32).reshape(-1, 2)
        if (blocks[1:, 0] - blocks[1:, 1] < blocks[:-1, 0]).any():
            raise NotOneRegime("passes of two loops overlap")
        self.repeats = Repeats(units, blocks, _frees(self._events, _array(further.events), blocks))
        self._unrolled: dict[int, Unrolled] = {}
        self.folded(further, units + 1)

    def folded(self, recording: Recording, units: int) -> Recording:
        """The recording as one of the fewest units: their events, with its own sizes.

        Raises:
            NotOneRegime: its events are not those that the loops predict, or passes of a loop differ in size.
        """
        unrolled = self._at(units)
        if not (np.array_equal(unrolled.events, _array(recording.events))
                and np.array_equal(self._codes[unrolled.layout.origin], self._codes_of(recording))
                and self._same_hooks(recording, unrolled)):
            raise NotOneRegime(f"the events of {units} units do not follow from those of {self._units}")
        sizes: dict[int, Any] = {}
        for source, buffer in zip(unrolled.allocations.tolist(), recording.buffers):
            if sizes.setdefault(source, buffer.size) != buffer.size:
                raise NotOneRegime(f"{buffer.module}, {buffer.operator}: passes of a loop allocate different sizes")
        return replace(self._recorded, buffers=[replace(buffer, size=sizes[source]) for source, buffer in
                                                zip(np.flatnonzero(self._events > 0).tolist(), self._recorded.buffers)])

    def _at(self, units: int) -> Unrolled:
        if units not in self._unrolled:
            try:
                self._unrolled[units] = unroll(self._events, self.repeats, units - self._units)
            except ValueError as error:
                raise NotOneRegime(str(error)) from error
        return self._unrolled[units]

    def _codes_of(self, recording: Recording) -> np.ndarray:
        """A number for each event, equal where events are equal except for bytes and rows."""
        of_buffer = [self._described.setdefault(
            (b.module, b.operator, b.role, b.recomputed, b.size[0] if isinstance(b.size, tuple) else ""),
            len(self._described)) for b in recording.buffers]
        events = _array(recording.events)
        moments = [self._described.setdefault((moment,), len(self._described)) for moment in recording.moments]
        return (np.array(of_buffer)[np.abs(events) - 1] << 32) + (_array(moments) << 1) + (events > 0)

    def _same_hooks(self, recording: Recording, unrolled: Unrolled) -> bool:
        """Whether gradients, marks and so on are where the loops predict them."""
        ours, allocations = self._recorded, np.flatnonzero(self._events > 0)

        def positions(of: Sequence[int]) -> list[int]:
            return unrolled.layout.outside(_array(of)).tolist()

        def rows(of: Sequence[int]) -> list[int]:
            return unrolled.rows(allocations[_array(of)]).tolist()

        try:
            return (
                positions([g.position for g in ours.gradients]) == [g.position for g in recording.gradients]
                and [g.parameter for g in ours.gradients] == [g.parameter for g in recording.gradients]
                and rows([g.row for g in ours.gradients]) == [g.row for g in recording.gradients]
                and positions([m.position for m in ours.marks]) == [m.position for m in recording.marks]
                and [m[1:] for m in ours.marks] == [m[1:] for m in recording.marks]
                and ours.owners == recording.owners
                and not (ours.cuts or ours.cache or recording.cuts or recording.cache)
                and rows(ours.outputs or ()) == list(recording.outputs or ()))
        except ValueError:  # a hook in a loop
            return False


def _array(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def _equal_length(left: np.ndarray, right: np.ndarray) -> int:
    """The number of equal elements at the start of two arrays."""
    size = min(len(left), len(right))
    for begin in range(0, size, WINDOW):
        end = min(begin + WINDOW, size)
        different = np.flatnonzero(left[begin:end] != right[begin:end])
        if len(different):
            return begin + int(different[0])
    return size


def _added_blocks(codes: np.ndarray, further: np.ndarray) -> Iterator[tuple[int, int]]:
    """Blocks of ``further`` that repeat the events before them and are missing in ``codes``: position there, length.

    Where several lengths repeat what precedes, the one after which the lists agree for longest is taken.
    """
    at = place = 0
    while True:
        equal = _equal_length(codes[at:], further[place:])
        at, place = at + equal, place + equal
        if place == len(further) and at == len(codes):
            return
        if place == len(further):
            raise NotOneRegime("an event of few units is missing with more")
        most = min(len(further) - len(codes), place)
        before = further[place - most : place]
        best = 0, 0
        for length in (most - np.flatnonzero(before == further[place]))[::-1].tolist():
            if np.array_equal(further[place : place + length], further[place - length : place]):
                agrees = _equal_length(codes[at : at + WINDOW], further[place + length : place + length + WINDOW])
                best = max(best, (agrees + (at + agrees == len(codes)), -length))
                if agrees == WINDOW:
                    break
        if not best[0]:
            raise NotOneRegime("further events repeat nothing before them")
        yield at, -best[1]
        place -= best[1]


def _frees(events: np.ndarray, further: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """:attr:`Repeats.frees`, from the list of events and that of one more unit.

    Raises:
        NotOneRegime: the buffer of a free is not that of one loop's pass.
    """
    layout = Layout(len(events), blocks, 1)
    place = allocations_of(further)
    buffers = np.stack([layout.origin[place], layout.number[place]])  # that each event of the further list is about
    alone = allocations_of(events)
    frees = np.flatnonzero(events < 0)
    rules = []
    seen = [np.stack([alone[frees], np.zeros_like(frees)]), buffers[:, layout.place(frees)],
            buffers[:, layout.place(frees, 1)]]
    in_pass = layout.period[:-1] > 0
    usual = np.where(in_pass[frees] & in_pass[seen[0][0]], 1, 0)
    odd = (seen[0] != seen[1]).any(0) | (seen[2][0] != seen[0][0]) | (seen[2][1] != usual)
    for index in np.flatnonzero(odd).tolist():
        position = int(frees[index])
        targets = [(int(which[0, index]), int(which[1, index])) for which in seen]
        rules.append((position, *_rule(targets, in_pass)))
    return np.array(rules, dtype=np.int32).reshape(-1, 6)


def _rule(targets: Sequence[tuple[int, int]], in_pass: np.ndarray) -> tuple[int, ...]:
    """The rest of a row of :attr:`Repeats.frees`.

    Args:
        targets: the buffers that are freed without a further unit, and with one in the recorded pass and in the next:
            position of the allocation, and its pass.
        in_pass: for each position, whether it is in the last pass of a loop.
    """
    of_pass = {allocation for allocation, _ in targets if in_pass[allocation]}
    others = {allocation for allocation, _ in targets if not in_pass[allocation]}
    if len(of_pass) != 1 or len(others) > 1:
        raise NotOneRegime("a free is of buffers that no loop allocates one after another")
    recorded, same, following = (number if in_pass[allocation] else -1 for allocation, number in targets)
    return *of_pass, same - recorded, following - same, recorded, *(others or {-1})
