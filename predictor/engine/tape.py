"""Records an engine's own events: the tape of a stretch, and how far its events raise the live bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from predictor.events.events import FACTORS, MOMENTS, EventType, Factor, Moment

MAIN_STREAM = 0
_FACTOR = {factor: index for index, factor in enumerate(FACTORS)}
_MOMENT = {moment: index for index, moment in enumerate(MOMENTS)}


Row = tuple[int, int, int, int]
"""One event of a tape: :class:`EventType`, buffer, index into :data:`MOMENTS`, and :attr:`Tape.position`. A bare tuple,
because a run has thousands of them that become columns at once; named tuples make composing a tenth slower."""

Attributes = tuple[int, int, int, str, str]
"""One buffer of a tape: bytes, stream, index into :data:`FACTORS`, module, operator. A bare tuple, as a row is."""


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
    """Records the engine's own events in order. Its buffers are numbered from ``first``.

    Attributes:
        moment: the outermost call that the next events happen in.
        position: the event of a traced micro-step before which the next events are inserted (:func:`weave`).
        rows: the events.
        attributes: the buffers.
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
        """Events that are recorded inside this context happen in the first step only."""
        begin = len(self.rows)
        yield
        self.once.update(range(begin, len(self.rows)))

    def drop_once(self, begin: int) -> None:
        """Removes, from row ``begin`` on, the events that only the first step has."""
        self.rows[begin:] = [row for number, row in enumerate(self.rows[begin:], begin) if number not in self.once]
        self.once = {number for number in self.once if number < begin}

    def allocate(self, size_bytes: int, factor: Factor, operator: str, *, module: str = "",
                 stream: int = MAIN_STREAM) -> int:
        """Allocates a new buffer and returns its number."""
        buffer = self.first + len(self.attributes)
        self.attributes.append((size_bytes, stream, _FACTOR[factor], module, operator))
        self.rows.append((1, buffer, _MOMENT[self.moment], self.position))
        return buffer

    def declare(self, size_bytes: int, factor: Factor, operator: str, *, module: str = "",
                stream: int = MAIN_STREAM) -> int:
        """Returns the number of a new buffer that is not allocated yet: :meth:`allocate_declared` does that later."""
        self.attributes.append((size_bytes, stream, _FACTOR[factor], module, operator))
        return self.first + len(self.attributes) - 1

    def allocate_declared(self, buffer: int) -> None:
        """Allocates a buffer of :meth:`declare`."""
        self.rows.append((1, buffer, _MOMENT[self.moment], self.position))

    def free(self, buffer: int) -> None:
        """Frees a buffer."""
        self.rows.append((-1, buffer, _MOMENT[self.moment], self.position))

    def mark(self, event_type: EventType) -> None:
        """Records an event that concerns no buffer, such as a synchronization. It gets a buffer of 0 bytes."""
        buffer = self.declare(0, Factor.ALLOCATOR, event_type.name.lower())
        self.rows.append((event_type, buffer, _MOMENT[self.moment], self.position))

    def record_stream(self, buffer: int, stream: int) -> None:
        """Records that another stream than the buffer's own uses it (``Tensor.record_stream``)."""
        self.rows.append((EventType.RECORD_STREAM + stream, buffer, _MOMENT[self.moment], self.position))

    def sizes(self) -> list[int]:
        """Bytes of each buffer."""
        return [size_bytes for size_bytes, _, _, _, _ in self.attributes]

    def columns(self) -> np.ndarray:
        """``int32[4, events]``: event type, buffer, moment, position."""
        return np.fromiter(chain.from_iterable(self.rows), np.int32, 4 * len(self.rows)).reshape(-1, 4).T

    def first_step_mask(self) -> np.ndarray:
        """``bool[events]``: whether only the first step has the event."""
        mask = np.zeros(len(self.rows), dtype=bool)
        mask[list(self.once)] = True
        return mask

    def rises(self, other: Callable[[int], int]) -> Rises:
        """The rises of the tape's events in the first step and in a later one.

        Args:
            other: gives the bytes of buffers that are not the tape's own.
        """
        sizes, first = self.sizes(), self.first
        changes = [kind * (sizes[buffer - first] if buffer >= first else other(buffer)) if kind <= 1 else 0
                   for kind, buffer, _, _ in self.rows]
        later = changes
        if self.once:
            later = [0 if row in self.once else change for row, change in enumerate(changes)]
        return Rises(rise_of(changes), rise_of(later))


def rise_of(changes: list[int]) -> Rise:
    """The rise of a list of changes of live bytes."""
    live = list(accumulate(changes, initial=0))
    return Rise(max(live), live[-1])
