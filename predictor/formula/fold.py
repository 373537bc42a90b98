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
from predictor.formula.repeats import RULES, Layout, Repeats, Unrolled, allocations_of, unroll
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
        codes, with_bytes = self._codes_of(further), self._codes_of(further, with_bytes=True)
        blocks = np.array(list(_added_blocks(self._codes, codes, with_bytes)), dtype=np.int32).reshape(-1, 2)
        self.repeats = Repeats(units, *_with_frees(self._events, _array(further.events), blocks, with_bytes))
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

    def _codes_of(self, recording: Recording, *, with_bytes: bool = False) -> np.ndarray:
        """A number for each event; the same for equal events. Rows do not count, nor bytes without ``with_bytes``."""
        of_buffer = [self._described.setdefault(
            (b.module, b.operator, b.role, b.recomputed,
             b.size if with_bytes else b.size[0] if isinstance(b.size, tuple) else ""),
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
                and ours.owners == recording.owners and positions(ours.cuts) == list(recording.cuts)
                and [[row if row < 0 else rows([row])[0] for row in pair] for pair in ours.cache]
                == list(map(list, recording.cache))
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


def _added_blocks(codes: np.ndarray, further: np.ndarray, with_bytes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Blocks of ``further`` that repeat the events before them and are missing in ``codes``: position there, length.

    Where several lengths repeat what precedes, the one after which the lists agree for longest is taken.

    Args:
        with_bytes: numbers for the further events that depend on their bytes too.
    """
    at = place = done = 0
    while True:
        equal = _equal_length(codes[at:], further[place:])
        at, place = at + equal, place + equal
        if place == len(further) and at == len(codes):
            return
        if place == len(further):
            raise NotOneRegime("an event of few units is missing with more")
        length = _added_length(codes[at:], further, place, len(further) - len(codes))
        earlier = _earlier(with_bytes[done : place + length], length)
        yield at - earlier, length
        place += length
        done = place - earlier


def _added_length(codes: np.ndarray, further: np.ndarray, place: int, most: int) -> int:
    """The length of the block at ``place`` in ``further`` that is missing at the start of ``codes``."""
    most, best = min(most, place), (0, 0)
    before = further[place - most : place]
    for length in (most - np.flatnonzero(before == further[place]))[::-1].tolist():
        if np.array_equal(further[place : place + length], further[place - length : place]):
            rest = further[place + length : place + length + WINDOW]
            agrees = _equal_length(codes[:WINDOW], rest)
            best = max(best, (agrees + (agrees == len(codes) == len(rest)), -length))
            if agrees == WINDOW:
                break
    if not best[0]:
        raise NotOneRegime("further events repeat nothing before them")
    return -best[1]


def _earlier(codes: np.ndarray, length: int) -> int:
    """By how many events a block at the end must begin earlier to be a copy, to the byte, of the block before it; 0 if
    that is nowhere so.

    A loop may be preceded by events that look like its last ones but for their bytes.
    """
    for earlier in range(min(length, len(codes) - 2 * length + 1)):
        end = len(codes) - earlier
        if np.array_equal(codes[end - length : end], codes[end - 2 * length : end - length]):
            return earlier
    return 0


def _with_frees(events: np.ndarray, further: np.ndarray, blocks: np.ndarray,
                with_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """:attr:`Repeats.blocks` and :attr:`Repeats.frees`, from the list of events and that of one more unit.

    A pass may begin at any of its events. Where frees of a pass follow no rule, it begins an event earlier: events
    after a loop may look like its next pass.

    Raises:
        NotOneRegime: there are no such rules.
    """
    blocks = blocks.copy()
    while True:
        starts = blocks[:, 0] - blocks[:, 1]
        if (starts < np.append(0, blocks[:-1, 0])).any():
            raise NotOneRegime("passes of two loops overlap")
        layout = Layout(len(events), blocks, 1)
        frees, wrong = _frees(events, further, layout)
        if not len(wrong):
            return blocks, frees
        index = np.searchsorted(blocks[:, 0], wrong[0], side="right")
        before = layout.place(starts[index]) - 1 if index < len(blocks) and starts[index] <= wrong[0] else -1
        if before < 0 or with_bytes[before] != with_bytes[before + blocks[index, 1]]:
            raise NotOneRegime("a free is of buffers that no loop allocates one after another")
        blocks[index, 0] -= 1


def _frees(events: np.ndarray, further: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """:attr:`Repeats.frees`, and the positions of frees that follow none of the rules."""
    place, in_pass = allocations_of(further), layout.period[:-1] > 0
    frees = np.flatnonzero(events < 0)
    further_frees = layout.place(frees), layout.place(frees, 1)
    # Allocation and pass of what each frees: without a further unit, and with one in the recorded pass and in the next.
    allocation = np.stack([allocations_of(events)[frees], *(layout.origin[place[of]] for of in further_frees)])
    number = np.stack([np.zeros_like(frees), *(layout.number[place[of]] for of in further_frees)])

    usual = np.where(in_pass[frees] & in_pass[allocation[0]], [[0], [0], [1]], 0)
    odd = ((allocation != allocation[0]) | (number != usual)).any(0)
    frees, allocation, number = frees[odd], allocation[:, odd], number[:, odd]
    looped = in_pass[allocation]
    number = np.where(looped, number, -1)
    of_pass, of_first = (np.where(which, allocation, -1).max(0) for which in (looped, ~looped))
    factors = np.stack([number[1] - number[0], number[2] - number[1], number[0]])
    follows = (np.where(looped, of_pass, of_first) == allocation).all(0) & looped.any(0) & np.logical_or.reduce(
        [(factors[0] == more) & (factors[1] == passes) for more, passes in RULES])
    return np.stack([frees, of_pass, *factors, of_first], axis=1).astype(np.int32), frees[~follows]
