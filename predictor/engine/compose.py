"""Builds the event list of a run from stretches: start-up, traced micro-steps with engine events between, steps.

Within a step buffers are numbered once: those of its micro-steps first, then the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from predictor.engine.setup import STEPS
from predictor.events.events import FACTORS, MOMENTS, Buffers, EventList, Factor, Kind, Moment
from predictor.events.micro_step import MicroStep

MAIN_STREAM = 0
_FACTOR = {factor: index for index, factor in enumerate(FACTORS)}
_MOMENT = {moment: index for index, moment in enumerate(MOMENTS)}


class Attributes(NamedTuple):
    """What a tape says of one buffer; ``factor`` is an index into :data:`FACTORS`."""

    size_bytes: int
    stream: int
    factor: int
    module: str
    operator: str


Row = tuple[int, int, int, int]
"""One event of a tape: :class:`Kind`, buffer, index into :data:`MOMENTS`, and :attr:`Tape.position`. Bare, because
none leaves this file, a run has thousands that become columns at once, and names make composing it a tenth slower."""


class Rise(NamedTuple):
    """How far the bytes that come and go in a stretch of events rise, and by how much they have grown at its end."""

    highest: int
    growth: int


class Rises(NamedTuple):
    """Of the first step and of a later one: they are alike."""

    first: Rise
    later: Rise


class RankPeak(NamedTuple):
    """Peak requested bytes of a rank: of its run, and of its steps alone, which tell ranks of one start-up apart."""

    run_bytes: int
    steps_bytes: int


@dataclass
class Tape:
    """An engine's own events, as they are said. Buffers are numbered from ``first``.

    Attributes:
        moment: the outermost call they happen in.
        position: before which event of a traced micro-step they happen, when they are woven into one.
        once: rows that only the first step has.
    """

    first: int = 0
    moment: Moment = Moment.INIT
    position: int = 0
    rows: list[Row] = field(default_factory=list)
    attributes: list[Attributes] = field(default_factory=list)
    once: set[int] = field(default_factory=set)

    @contextmanager
    def first_step_only(self) -> Iterator[None]:
        """What is said inside happens in the first step only."""
        begin = len(self.rows)
        yield
        self.once.update(range(begin, len(self.rows)))

    def drop_once(self, begin: int) -> None:
        """What only the first step has is not said, of all from row ``begin`` on: this is a later one."""
        self.rows[begin:] = [row for number, row in enumerate(self.rows[begin:], begin) if number not in self.once]
        self.once = {number for number in self.once if number < begin}

    def allocate(self, size_bytes: int, factor: Factor, operator: str, *, module: str = "",
                 stream: int = MAIN_STREAM) -> int:
        """A new buffer lives from now on."""
        buffer = self.first + len(self.attributes)
        self.attributes.append(Attributes(size_bytes, stream, _FACTOR[factor], module, operator))
        self.rows.append((1, buffer, _MOMENT[self.moment], self.position))
        return buffer

    def declare(self, size_bytes: int, factor: Factor, operator: str, *, module: str = "",
                stream: int = MAIN_STREAM) -> int:
        """A buffer that is allocated later, by :meth:`again`."""
        self.attributes.append(Attributes(size_bytes, stream, _FACTOR[factor], module, operator))
        return self.first + len(self.attributes) - 1

    def again(self, buffer: int) -> None:
        """A declared buffer lives from now on."""
        self.rows.append((1, buffer, _MOMENT[self.moment], self.position))

    def free(self, buffer: int) -> None:
        """The buffer dies now."""
        self.rows.append((-1, buffer, _MOMENT[self.moment], self.position))

    def mark(self, kind: Kind) -> None:
        """Something that concerns no buffer of its own: one of no bytes stands for it."""
        buffer = self.declare(0, Factor.ALLOCATOR, kind.name.lower())
        self.rows.append((kind, buffer, _MOMENT[self.moment], self.position))

    def record_stream(self, buffer: int, stream: int) -> None:
        """Another stream than the buffer's own uses it too."""
        self.rows.append((Kind.RECORD_STREAM + stream, buffer, _MOMENT[self.moment], self.position))

    def columns(self) -> np.ndarray:
        """``int32[4, events]``: kind, buffer, moment, position."""
        return np.fromiter(chain.from_iterable(self.rows), np.int32, 4 * len(self.rows)).reshape(-1, 4).T

    def seldom(self) -> np.ndarray:
        """``bool[events]``: what only the first step has."""
        seldom = np.zeros(len(self.rows), dtype=bool)
        seldom[list(self.once)] = True
        return seldom

    def rises(self, other: Callable[[int], int]) -> Rises:
        """Those of its steps; ``other`` gives the bytes of buffers that are not its own."""
        sizes, first = [made.size_bytes for made in self.attributes], self.first
        changes = [kind * (sizes[buffer - first] if buffer >= first else other(buffer)) if kind <= 1 else 0
                   for kind, buffer, _, _ in self.rows]
        again = changes
        if self.once:
            again = [0 if row in self.once else change for row, change in enumerate(changes)]
        return Rises(rise_of(changes), rise_of(again))


def rise_of(changes: list[int]) -> Rise:
    """Of bytes that come and go."""
    live = list(accumulate(changes, initial=0))
    return Rise(max(live), live[-1])


def weave(micro: MicroStep, tape: Tape) -> tuple[np.ndarray, np.ndarray]:
    """A traced micro-step with an engine's events in their places.

    Returns ``int32[3, events]`` (kind, buffer, moment), and where each event of the tape went.
    """
    events = micro.events
    traced = np.stack([events.kind.astype(np.int32), events.buffer, events.moment.astype(np.int32)])
    *said, positions = tape.columns()
    columns = np.insert(traced, positions, np.stack(said), axis=1)
    order = np.argsort(positions, kind="stable")
    places = np.empty(len(positions), dtype=np.int64)
    places[order] = positions[order] + np.arange(len(positions))
    return columns, places


class Vocabulary:
    """Sizes and names of engine buffers as rows of the tables that the trace began; shared by all ranks."""

    def __init__(self, micro: MicroStep) -> None:
        self._events, self._persistent = micro.events, micro.persistent
        self._traced = len(micro.events.sizes)
        self._names = {name: index for index, name in enumerate(micro.events.names)}
        self._constants: dict[int, int] = {}

    def size(self, size_bytes: int) -> int:
        """Row of a byte count in the size table."""
        return self._traced + self._constants.setdefault(size_bytes, len(self._constants))

    def buffers(self, attributes: Sequence[Attributes]) -> Buffers:
        """One row a buffer of a tape."""
        def column(values: Sequence[int]) -> np.ndarray:
            return np.fromiter(values, np.int8, len(values))

        def rows(values: Sequence, table: dict) -> np.ndarray:
            for value in dict.fromkeys(values):
                table.setdefault(value, len(table))
            return np.fromiter(map(table.__getitem__, values), np.int32, len(values))

        sizes, streams, factors, modules, operators = zip(*attributes) if attributes else [()] * 5
        return Buffers(self._traced + rows(sizes, self._constants), column(streams), column(factors),
                       rows(modules, self._names), rows(operators, self._names))

    def assemble(self, start: Stretch, step: Stretch, second: np.ndarray | None = None) -> EventList:
        """The events of a run: start-up, the first step, and the later ones, which are alike.

        In a step ``~n`` is start-up's buffer ``n``. ``second``: columns that the second step alone begins with.
        """
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
        """The events of a run whose engine wrote all of it, start-up and steps, to one tape.

        Args:
            tape: its positions count the events of all micro-steps, one after the other.
            micro_steps: how many there are, all steps together.
            ends: rows of the tape after start-up and after each step.
        """
        events, persistent = self._events, np.isin(self._events.buffer, self._persistent)
        traced = np.stack([events.kind.astype(np.int32), events.buffer, events.moment.astype(np.int32)])
        parts = [traced + np.array([[0], [number * len(events.buffers)], [0]], dtype=np.int32)
                 for number in range(micro_steps)]
        columns = np.concatenate(parts, axis=1)
        kept = np.concatenate([np.ones_like(persistent), np.tile(~persistent, micro_steps - 1)])
        steps = np.repeat(np.arange(1, len(ends)), columns.shape[1] // (len(ends) - 1))
        *said, positions = tape.columns()
        step_of = np.searchsorted(ends, np.arange(len(positions)), side="right")
        columns = np.insert(np.concatenate([columns, steps[None], kept[None]]), positions,
                            np.stack([*said, step_of, np.ones_like(step_of)]), axis=1)
        kind, buffer, moment, step = columns[:4, columns[4] > 0]
        buffers = Buffers.concatenate([events.buffers] * micro_steps + [self.buffers(tape.attributes)])
        return EventList(kind.astype(np.int8), buffer.astype(np.int32), moment.astype(np.int8), step.astype(np.int8),
                         buffers, events.sizes.with_constants(list(self._constants)), tuple(self._names))


@dataclass(frozen=True, eq=False)
class Stretch:
    """Part of a run whose buffers are its own.

    Attributes:
        columns: ``int32[3, events]``: kind, buffer, moment.
        micro_steps: how many micro-steps' buffers come before the engine's.
        buffers: the engine's.
        once: ``bool[events]``, what only the first step has; unused of a start-up.
    """

    columns: np.ndarray
    micro_steps: int
    buffers: Buffers
    once: np.ndarray | None = None
