"""The common form of a recorded and a predicted job: allocations, and when each begins and ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from predictor.common.errors import InputError
from predictor.events import timeline
from predictor.events.events import FACTORS, MOMENTS, Factor, Moment
from predictor.snapshot.records import Action, Metadata, Snapshot, Trace

if TYPE_CHECKING:
    from predictor.events.composed_run import Run

UNKNOWN_FACTOR = -1
MOMENT_NUMBERS = {moment.value: number for number, moment in enumerate(MOMENTS)}


@dataclass(frozen=True, eq=False)
class JobAllocations:
    """The allocations of a job in order, and its changes (allocations and frees) in order.

    Attributes:
        bytes: ``int64[n]``, requested, never 0.
        operator: ``n`` operator names.
        module: ``n`` dotted module paths.
        factor: ``int8[n]``, index into :data:`predictor.events.events.FACTORS`; -1 if unknown.
        born: ``int64[n]``, the change that allocates it.
        died: ``int64[n]``, the change that frees it; the number of changes if none does.
        change: ``int64[m]``, the allocation that begins or ends.
        sign: ``int8[m]``, +1 or -1.
        moment: ``int8[m]``, index into :data:`predictor.events.events.MOMENTS`.
        step: ``int8[m]``, 0 for start-up.
        cut_off: whether the job ended early, out of memory.
    """

    bytes: np.ndarray
    operator: tuple[str, ...]
    module: tuple[str, ...]
    factor: np.ndarray
    born: np.ndarray
    died: np.ndarray
    change: np.ndarray
    sign: np.ndarray
    moment: np.ndarray
    step: np.ndarray
    cut_off: bool = False

    def __len__(self) -> int:
        return len(self.bytes)

    @cached_property
    def live(self) -> np.ndarray:
        """``int64[m]``: bytes alive after each change."""
        return np.cumsum(self.bytes[self.change] * self.sign)

    @cached_property
    def peak_at(self) -> int:
        """The first change after which the most bytes are alive."""
        return int(np.argmax(self.live))

    @property
    def peak_bytes(self) -> int:
        """The most requested bytes alive at once."""
        return int(self.live[self.peak_at])

    def alive(self, at: int) -> np.ndarray:
        """``bool[n]``: the allocations that are alive after a change."""
        return (self.born <= at) & (self.died > at)

    def place(self, row: int) -> tuple[int, Moment]:
        """Step and moment of an allocation."""
        at = self.born[row]
        return int(self.step[at]), MOMENTS[self.moment[at]]

    def factor_of(self, row: int) -> Factor | None:
        """The factor of an allocation; None if unknown."""
        number = int(self.factor[row])
        return None if number == UNKNOWN_FACTOR else FACTORS[number]

    def groups(self) -> dict[tuple[int, int], np.ndarray]:
        """Allocations of each step and moment (its index), in order."""
        keys = self.step[self.born].astype(np.int64) * len(MOMENTS) + self.moment[self.born]
        return {(int(key) // len(MOMENTS), int(key) % len(MOMENTS)): np.flatnonzero(keys == key)
                for key in np.unique(keys)}

    def highest(self) -> dict[tuple[int, Moment], int]:
        """The most bytes alive in each moment of each step, including what was alive at its start."""
        highest = timeline.highest_by_moment(self.live, self.step, self.moment)
        return {place: int(self.live[at]) for place, at in highest.items()}


class _Allocation(NamedTuple):
    bytes: int
    operator: str
    module: str
    factor: int
    born: int


class _Change(NamedTuple):
    allocation: int
    sign: int
    moment: int
    step: int


class _Place(NamedTuple):
    """Step and moment of a history's entry. ``moment`` is an index into MOMENTS."""

    moment: int
    step: int
    metadata: Metadata


class _Builder:
    """Collects the changes of a job."""

    def __init__(self) -> None:
        self.changes: list[_Change] = []
        self.allocations: list[_Allocation] = []
        self._died: dict[int, int] = {}

    def allocate(self, size: int, operator: str, module: str, factor: int, moment: int, step: int) -> int:
        row = len(self.allocations)
        self.allocations.append(_Allocation(size, operator, module, factor, len(self.changes)))
        self.changes.append(_Change(row, 1, moment, step))
        return row

    def free(self, row: int, moment: int, step: int) -> None:
        self._died[row] = len(self.changes)
        self.changes.append(_Change(row, -1, moment, step))

    def side(self, cut_off: bool = False) -> JobAllocations:
        sizes, operators, modules, factors, born = zip(*self.allocations) if self.allocations else [()] * 5
        change, sign, moment, step = zip(*self.changes) if self.changes else [()] * 4
        died = np.full(len(sizes), len(change), dtype=np.int64)
        died[list(self._died)] = list(self._died.values())
        return JobAllocations(np.array(sizes, dtype=np.int64), operators, modules, np.array(factors, dtype=np.int8),
                              np.array(born, dtype=np.int64), died, np.array(change, dtype=np.int64),
                              np.array(sign, dtype=np.int8), np.array(moment, dtype=np.int8),
                              np.array(step, dtype=np.int8), cut_off)


def from_run(run: Run) -> JobAllocations:
    """The allocations of a composed run. Buffers of no bytes are left out, because PyTorch's allocator never sees them.
    """
    events, buffers, names = run.events, run.events.buffers, run.events.names
    sizes = run.row_bytes[buffers.size].tolist()
    operator, module, factor = (column.tolist() for column in (buffers.operator, buffers.module, buffers.factor))
    builder, rows = _Builder(), {}
    columns = (column.tolist() for column in (events.sign, events.buffer, events.moment, events.step))
    for sign, buffer, moment, step in zip(*columns):
        if not sign or not sizes[buffer]:
            continue
        if sign > 0:
            rows[buffer] = builder.allocate(sizes[buffer], names[operator[buffer]], names[module[buffer]],
                                            factor[buffer], moment, step)
        else:
            builder.free(rows.pop(buffer), moment, step)
    return builder.side()


def from_snapshot(snapshot: Snapshot) -> JobAllocations:
    """The allocations in the longest history of a snapshot that ``peakcast measure --snapshot`` wrote.

    A block lives until it is really freed (``free_completed``), as in PyTorch's counter of requested bytes
    (``free_block``, c10/cuda/CUDACachingAllocator.cpp, 2.11).

    Raises:
        InputError: the history is empty, begins in the middle of the job, or has entries without a moment.
    """
    trace = max(snapshot.traces, key=len, default=None)
    if trace is None or not len(trace):
        raise InputError("the snapshot has no history: record one with peakcast measure --snapshot FILE")
    builder, rows = _Builder(), {}
    where = _places(trace)
    for index, (action, address, size) in enumerate(
            zip(trace.action.tolist(), trace.address.tolist(), trace.size.tolist())):
        if action == Action.ALLOC:
            place = where(index)
            rows[address] = builder.allocate(size, place.metadata.operator, place.metadata.module, UNKNOWN_FACTOR,
                                             place.moment, place.step)
        elif action == Action.FREE_COMPLETED:
            place = where(index)
            if address not in rows:
                raise InputError(f"the snapshot's history begins in the middle of the job (entry {index:,} frees what "
                                 "it never allocated): record one with peakcast measure --snapshot FILE")
            builder.free(rows.pop(address), place.moment, place.step)
    if not builder.allocations:
        raise InputError("nothing is allocated in the snapshot's history")
    return builder.side(cut_off=bool((trace.action == Action.OOM).any()))


def _places(trace: Trace):
    """A function that returns the moment's index, step and metadata of an entry."""
    known: dict[str, _Place] = {}

    def of(index: int) -> _Place:
        text = trace.user_metadata[index]
        if text not in known:
            metadata = trace.metadata(index)
            if metadata is None or metadata.moment not in MOMENT_NUMBERS or not 0 <= metadata.step < 1 << 7:
                raise InputError(f"entry {index:,} of the snapshot does not say which moment and step it belongs to: "
                                 "record one with peakcast measure --snapshot FILE")
            known[text] = _Place(MOMENT_NUMBERS[metadata.moment], metadata.step, metadata)
        return known[text]

    return of
