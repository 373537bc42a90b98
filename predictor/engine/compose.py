"""Composes the event list of a run from stretches: start-up, and steps of traced micro-steps with the engine's events.

Within a step, the buffers of its micro-steps are numbered first, then those of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from predictor.engine.setup import STEPS
from predictor.events.events import FACTORS, MOMENTS, Buffers, EventList, EventType, Factor, Moment
from predictor.events.micro_step import MicroStep

MAIN_STREAM = 0
_FACTOR = {factor: index for index, factor in enumerate(FACTORS)}
_MOMENT = {moment: index for index, moment in enumerate(MOMENTS)}


@dataclass(slots=True)
class EngineBuffers:
    """The buffers that an engine adds, one list for each attribute.

    Attributes:
        sizes: bytes.
        streams: CUDA streams.
        factors: indices into :data:`FACTORS`.
        modules: dotted paths.
        operators: names of engine calls.
    """

    sizes: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    factors: list[int] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sizes)


class Rise(NamedTuple):
    """Change of live bytes over a stretch of events: its maximum, and its value at the end, relative to the start."""

    highest: int
    growth: int


class Rises(NamedTuple):
    """The rise of the first step, and that of each later one."""

    first: Rise
    later: Rise

    def plus(self, highest: int, growth: int) -> Rises:
        """The same rises with these bytes added to their maxima and to their ends."""
        return Rises(*(Rise(rise.highest + highest, rise.growth + growth) for rise in self))


class RankPeak(NamedTuple):
    """Peak requested bytes of a rank: of its whole run, and of its steps without start-up.

    The second compares ranks whose highest peak is that of start-up.
    """

    run_bytes: int
    steps_bytes: int


@dataclass(slots=True)
class Tape:
    """Records the engine's own events in order, one list for each of their attributes.

    Attributes:
        first: number of the first of its buffers.
        moment: the outermost call that the next events happen in.
        position: the event of a traced micro-step before which the next events are inserted (:func:`weave`).
        event_types: the :class:`EventType` of each event.
        event_buffers: the buffer of each event.
        event_moments: the moment of each event, an index into :data:`MOMENTS`.
        positions: :attr:`position` at each event.
        buffers: the buffers.
        once: events that only the first step has.
    """

    first: int = 0
    moment: Moment = Moment.INIT
    position: int = 0
    event_types: list[int] = field(default_factory=list)
    event_buffers: list[int] = field(default_factory=list)
    event_moments: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    buffers: EngineBuffers = field(default_factory=EngineBuffers)
    once: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        """The number of events."""
        return len(self.event_types)

    @contextmanager
    def first_step_only(self) -> Iterator[None]:
        """Events that are recorded inside this context happen in the first step only."""
        begin = len(self)
        yield
        self.once.update(range(begin, len(self)))

    def drop_once(self, begin: int) -> None:
        """Removes, from event ``begin`` on, those that only the first step has."""
        kept = [number for number in range(begin, len(self)) if number not in self.once]
        for column in (self.event_types, self.event_buffers, self.event_moments, self.positions):
            column[begin:] = [column[number] for number in kept]
        self.once = {number for number in self.once if number < begin}

    def allocate(self, size_bytes: int, factor: Factor, operator: str, *, module: str = "",
                 stream: int = MAIN_STREAM) -> int:
        """Allocates a new buffer and returns its number."""
        buffer = self.declare(size_bytes, factor, operator, module=module, stream=stream)
        self._record(1, buffer)
        return buffer

    def declare(self, size_bytes: int, factor: Factor, operator: str, *, module: str = "",
                stream: int = MAIN_STREAM) -> int:
        """Returns the number of a new buffer that is not allocated yet: :meth:`allocate_declared` does that later."""
        buffers = self.buffers
        buffers.sizes.append(size_bytes)
        buffers.streams.append(stream)
        buffers.factors.append(_FACTOR[factor])
        buffers.modules.append(module)
        buffers.operators.append(operator)
        return self.first + len(buffers.sizes) - 1

    def allocate_declared(self, buffer: int) -> None:
        """Allocates a buffer of :meth:`declare`."""
        self._record(1, buffer)

    def free(self, buffer: int) -> None:
        """Frees a buffer."""
        self._record(-1, buffer)

    def declare_each(self, sizes: Sequence[int], factor: Factor, operator: str, modules: Sequence[str] = ()) -> range:
        """Declares buffers of these bytes, and returns their numbers. ``modules`` has one each, or none."""
        buffers, count = self.buffers, len(sizes)
        begin = self.first + len(buffers)
        buffers.sizes += sizes
        buffers.streams += [MAIN_STREAM] * count
        buffers.factors += [_FACTOR[factor]] * count
        buffers.modules += modules or [""] * count
        buffers.operators += [operator] * count
        return range(begin, begin + count)

    def record_each(self, event_types: Sequence[int], buffers: Sequence[int]) -> None:
        """Allocates (:attr:`EventType.ALLOCATE`) or frees (:attr:`EventType.FREE`) each of these declared buffers."""
        count = len(buffers)
        self.event_types += event_types
        self.event_buffers += buffers
        self.event_moments += [_MOMENT[self.moment]] * count
        self.positions += [self.position] * count

    def mark(self, event_type: EventType) -> None:
        """Records an event that concerns no buffer, such as a synchronization. It gets a buffer of 0 bytes."""
        self._record(event_type, self.declare(0, Factor.ALLOCATOR, event_type.name.lower()))

    def record_stream(self, buffer: int, stream: int) -> None:
        """Records that another stream than the buffer's own uses it (``Tensor.record_stream``)."""
        self._record(EventType.RECORD_STREAM + stream, buffer)

    def columns(self) -> np.ndarray:
        """``int32[4, events]``: event type, buffer, moment, position."""
        return np.array([self.event_types, self.event_buffers, self.event_moments, self.positions], np.int32)

    def first_step_mask(self) -> np.ndarray:
        """``bool[events]``: whether only the first step has the event."""
        mask = np.zeros(len(self), dtype=bool)
        mask[list(self.once)] = True
        return mask

    def rises(self, other: Callable[[int], int]) -> Rises:
        """The rises of the tape's events in the first step and in a later one.

        Args:
            other: gives the bytes of buffers that are not the tape's own.
        """
        sizes, first = self.buffers.sizes, self.first
        changes = [event_type * (sizes[buffer - first] if buffer >= first else other(buffer)) if event_type <= 1 else 0
                   for event_type, buffer in zip(self.event_types, self.event_buffers)]
        later = changes
        if self.once:
            later = [0 if number in self.once else change for number, change in enumerate(changes)]
        return Rises(rise_of(changes), rise_of(later))

    def _record(self, event_type: int, buffer: int) -> None:
        self.event_types.append(event_type)
        self.event_buffers.append(buffer)
        self.event_moments.append(_MOMENT[self.moment])
        self.positions.append(self.position)


def rise_of(changes: list[int]) -> Rise:
    """The rise of a list of changes of live bytes."""
    live = list(accumulate(changes, initial=0))
    return Rise(max(live), live[-1])


def weave(micro: MicroStep, tape: Tape) -> tuple[np.ndarray, np.ndarray]:
    """Inserts an engine's events into a traced micro-step, each before the event at its position.

    Returns:
        ``int32[3, events]`` (event type, buffer, moment), and the new index of each event of the tape.
    """
    events = micro.events
    traced = np.stack([events.kind.astype(np.int32), events.buffer, events.moment.astype(np.int32)])
    *inserted, positions = tape.columns()
    columns = np.insert(traced, positions, np.stack(inserted), axis=1)
    order = np.argsort(positions, kind="stable")
    places = np.empty(len(positions), dtype=np.int64)
    places[order] = positions[order] + np.arange(len(positions))
    return columns, places


class Vocabulary:
    """Adds sizes and names of engine buffers as rows to the tables of the trace. All ranks share it."""

    def __init__(self, micro: MicroStep) -> None:
        self._events, self._persistent = micro.events, micro.persistent
        self._traced = len(micro.events.sizes)
        self._names = {name: index for index, name in enumerate(micro.events.names)}
        self._constants: dict[int, int] = {}

    def size(self, size_bytes: int) -> int:
        """The row of a byte count in the size table."""
        return self._traced + self._constants.setdefault(size_bytes, len(self._constants))

    def buffers(self, added: EngineBuffers) -> Buffers:
        """The buffers of a tape, one row each."""
        def column(values: Sequence[int]) -> np.ndarray:
            return np.fromiter(values, np.int8, len(values))

        def rows(values: Sequence, table: dict) -> np.ndarray:
            for value in dict.fromkeys(values):
                table.setdefault(value, len(table))
            return np.fromiter(map(table.__getitem__, values), np.int32, len(values))

        return Buffers(self._traced + rows(added.sizes, self._constants), column(added.streams), column(added.factors),
                       rows(added.modules, self._names), rows(added.operators, self._names))

    def assemble(self, start: Stretch, step: Stretch, second: np.ndarray | None = None) -> EventList:
        """The events of a run: start-up, the first step, and the later steps, which are alike.

        Args:
            step: the first step; in its columns, ``~n`` stands for buffer ``n`` of start-up.
            second: columns that are inserted at the beginning of the second step only.
        """
        assert step.once is not None  # only a start-up has none
        later = replace(step, columns=step.columns[:, ~step.once])
        stretches = [start, step] + [later] * (STEPS - 1)
        if second is not None:
            stretches[2] = replace(later, columns=np.concatenate([second, later.columns], axis=1))
        ends = list(accumulate(stretch.columns.shape[1] for stretch in stretches))
        buffer = np.empty(ends[-1], dtype=np.int32)
        kind, moment, steps = (np.empty(ends[-1], dtype=np.int8) for _ in range(3))
        parts, offset = [], 0
        for number, (stretch, end) in enumerate(zip(stretches, ends)):
            place = slice(end - stretch.columns.shape[1], end)
            kind[place], buffer[place], moment[place] = stretch.columns
            buffer[place] = np.where(buffer[place] < 0, ~buffer[place], buffer[place] + offset)
            steps[place] = number
            parts += [self._events.buffers] * stretch.micro_steps + [stretch.buffers]
            offset += len(self._events.buffers) * stretch.micro_steps + len(stretch.buffers)
        return EventList(kind, buffer, moment, steps, Buffers.concatenate(parts),
                         self._events.sizes.with_constants(list(self._constants)), tuple(self._names))

    def whole(self, tape: Tape, micro_steps: int, ends: Sequence[int]) -> EventList:
        """The events of a run whose engine recorded start-up and all steps on one tape.

        Args:
            tape: its positions count the events of all micro-steps, one after the other.
            micro_steps: number of micro-steps of all steps together.
            ends: number of the tape's rows after start-up and after each step.
        """
        events, persistent = self._events, np.isin(self._events.buffer, self._persistent)
        traced = np.stack([events.kind.astype(np.int32), events.buffer, events.moment.astype(np.int32)])
        parts = [traced + np.array([[0], [number * len(events.buffers)], [0]], dtype=np.int32)
                 for number in range(micro_steps)]
        columns = np.concatenate(parts, axis=1)
        kept = np.concatenate([np.ones_like(persistent), np.tile(~persistent, micro_steps - 1)])
        steps = np.repeat(np.arange(1, len(ends)), columns.shape[1] // (len(ends) - 1))
        *inserted, positions = tape.columns()
        step_of = np.searchsorted(ends, np.arange(len(positions)), side="right")
        columns = np.insert(np.concatenate([columns, steps[None], kept[None]]), positions,
                            np.stack([*inserted, step_of, np.ones_like(step_of)]), axis=1)
        kind, buffer, moment, step = columns[:4, columns[4] > 0]
        buffers = Buffers.concatenate([events.buffers] * micro_steps + [self.buffers(tape.buffers)])
        return EventList(kind.astype(np.int8), buffer.astype(np.int32), moment.astype(np.int8), step.astype(np.int8),
                         buffers, events.sizes.with_constants(list(self._constants)), tuple(self._names))


@dataclass(frozen=True, eq=False)
class Stretch:
    """Part of a run, either start-up or one step, with its own numbering of buffers.

    Attributes:
        columns: ``int32[3, events]``: event type, buffer, moment.
        micro_steps: number of micro-steps whose buffers are numbered before the engine's.
        buffers: the engine's buffers.
        once: ``bool[events]``: whether only the first step has the event; None of a start-up.
    """

    columns: np.ndarray
    micro_steps: int
    buffers: Buffers
    once: np.ndarray | None = None
