"""Records an engine's own events: the tape of a stretch, and how far its events raise the live bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from predictor.common.errors import InputError
from predictor.events.events import FACTORS, MOMENTS, EventType, Factor, Moment

MAIN_STREAM = 0
MOST_BUFFERS = 1 << 18
"""Buffers that an engine may add. Usual jobs have some thousands; ZeRO-3 has more than this where a model of 7 B
parameters is on more than 4,096 GPUs, so that small parameters have fewer elements than there are ranks."""
_FACTOR = {factor: index for index, factor in enumerate(FACTORS)}
_MOMENT = {moment: index for index, moment in enumerate(MOMENTS)}


class TooManyBuffers(InputError):
    """An engine would add more than :data:`MOST_BUFFERS` buffers, which is known after so many were composed."""

    def __init__(self) -> None:
        super().__init__(f"the engine allocates more than {MOST_BUFFERS:,} buffers on a GPU, too many to simulate, "
                         "because each gradient is cut into a piece for each GPU: give fewer GPUs")


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

    def repeat(self, first: int) -> None:
        """Adds the buffers from ``first`` on once more."""
        columns: tuple[list, ...] = (self.sizes, self.streams, self.factors, self.modules, self.operators)
        for column in columns:
            column += column[first:]


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
        if len(buffers.sizes) == MOST_BUFFERS:
            raise TooManyBuffers
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

    def repeat(self, begin: int, first: int, *, traced: int, positions: int, renamed: Mapping[int, int]) -> None:
        """Records the events from ``begin`` on once more, with new buffers, as those of a later step.

        Args:
            first: number of the first buffer that was declared for these events.
            traced, positions: by how much the later step's traced buffers and positions are further on.
            renamed: older buffer of the engine -> the one that takes its place; others stay the same.
        """
        new = self.first + len(self.buffers) - first

        def later(buffer: int) -> int:
            if buffer >= first:
                return buffer + new
            return renamed.get(buffer, buffer) if buffer >= self.first else buffer + traced

        self.event_types += self.event_types[begin:]
        self.event_buffers += map(later, self.event_buffers[begin:])
        self.event_moments += self.event_moments[begin:]
        self.positions += [position + positions for position in self.positions[begin:]]
        self.buffers.repeat(first - self.first)

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
