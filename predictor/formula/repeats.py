"""Lists of events that have a further copy of some blocks for each further image, unrolled for any number of images.

A vision tower that loops over images, or over windows of each, has more events for more images. A recording with one
more unit (a sample with its images, or an image of the only sample) has one more copy of each loop's last pass.
:mod:`predictor.formula.fold` finds the loops in recordings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from predictor.events.events import Buffers
from predictor.events.micro_step import MicroStep

SAME, OF_PASS, LAST, REVERSED = (0, 0), (0, 1), (1, 0), (1, -1)
"""The first two factors in :attr:`Repeats.frees`: the buffer of the same pass each time; that of the free's own pass;
that of the last pass; those of all passes in reverse order."""
RULES = (SAME, OF_PASS, LAST, REVERSED)


@dataclass(frozen=True, eq=False)
class Repeats:
    """The loops of a list of events that was recorded with few units.

    Attributes:
        units: units of the list as it was recorded.
        blocks: ``int32[k, 2]``, for each loop the position after its last pass, and the events of a pass. The copies
            for further units follow that pass.
        frees: ``int32[f, 6]``, frees whose buffer depends on the units or on the pass: position of the free; position
            of the allocation ``a``, in a pass; three factors; position of the allocation ``z``, or -1. With ``more``
            units, the free in pass ``j`` (0 is the recorded one) frees the buffer of pass ``factors @ (more, j, 1)``
            of ``a``; if that is -1, the buffer of ``z``. Other frees are of the same pass, or outside of loops.
    """

    units: int
    blocks: np.ndarray
    frees: np.ndarray


class Layout:
    """Where the events of a list are if its loops have more passes.

    Args:
        length: number of recorded events.
        blocks: as :attr:`Repeats.blocks`.
        more: passes that each loop has beyond the recorded ones.

    Attributes:
        origin: for each event, its position in the recorded list.
        number: for each event, its pass beyond the recorded ones; 0 for recorded events.
        period: for each recorded event, the length of a pass of its loop; 0 outside of loops' last passes.
    """

    def __init__(self, length: int, blocks: np.ndarray, more: int) -> None:
        ends, lengths = blocks.T.astype(np.int64)
        added = np.zeros(length + 1, dtype=np.int64)
        added[ends] = lengths * more
        self._shift = np.cumsum(added)
        self.period = np.zeros(length + 1, dtype=np.int64)
        self.origin = np.empty(length + int(self._shift[-1]), dtype=np.int64)
        self.origin[self._shift[:-1] + np.arange(length)] = np.arange(length)
        self.number = np.zeros(len(self.origin), dtype=np.int64)
        for end, size in zip(ends.tolist(), lengths.tolist()):
            self.period[end - size : end] = size
            begin = end + int(self._shift[end]) - size * more
            self.origin[begin : begin + size * more] = np.tile(np.arange(end - size, end), more)
            self.number[begin : begin + size * more] = np.repeat(np.arange(1, more + 1), size)

    def place(self, recorded: np.ndarray, number: np.ndarray | int = 0) -> np.ndarray:
        """Positions of events of a pass, from their recorded positions."""
        return recorded + self._shift[recorded] + number * self.period[recorded]

    def outside(self, recorded: np.ndarray) -> np.ndarray:
        """:meth:`place` of positions that are in no loop.

        Raises:
            ValueError: one is in a loop.
        """
        if self.period[recorded].any():
            raise ValueError("something happens in each pass of a loop")
        return self.place(recorded)


@dataclass(frozen=True, eq=False)
class Unrolled:
    """A list of events with further units.

    Attributes:
        layout: where its events come from.
        events: its events, as :attr:`predictor.trace.recorder.Recording.events`.
    """

    layout: Layout
    events: np.ndarray

    @cached_property
    def allocations(self) -> np.ndarray:
        """For each of its buffers, the position of the recorded event that allocates it."""
        return self.layout.origin[self.events > 0]

    def rows(self, allocations: np.ndarray) -> np.ndarray:
        """Rows of buffers, from the positions of the recorded events that allocate them.

        Raises:
            ValueError: one is allocated in a loop.
        """
        return self.events[self.layout.outside(allocations)] - 1


def unroll(events: np.ndarray, repeats: Repeats, more: int) -> Unrolled:
    """A list of events with more units than it was recorded with.

    Args:
        events: the recorded list, as :attr:`predictor.trace.recorder.Recording.events`.
        more: number of further units.

    Raises:
        ValueError: the loops do not fit the list: a buffer is freed twice, or before it is allocated.
    """
    layout = Layout(len(events), repeats.blocks, more)
    in_pass = layout.period[:-1] > 0
    buffer = allocations_of(events)  # here and below, a buffer is named by the position that allocates it
    factors = np.zeros((len(events), 3), dtype=np.int64)
    factors[:, 1] = in_pass & in_pass[buffer]
    first = np.full(len(events), -1)
    free, of_pass, *three, of_first = repeats.frees.T
    buffer[free], factors[free], first[free] = of_pass, np.stack(three, axis=1), of_first

    freed = np.flatnonzero(events[layout.origin] < 0)
    at = layout.origin[freed]
    number = factors[at, 0] * more + factors[at, 1] * layout.number[freed] + factors[at, 2]
    source = np.where(number == -1, first[at], buffer[at])
    if (number < -1).any() or (source < 0).any() or (number > np.where(in_pass[source], more, 0)).any():
        raise ValueError("a free is of no buffer")
    source = layout.place(source, np.maximum(number, 0))
    allocates = events[layout.origin] > 0
    signed = np.where(allocates, np.cumsum(allocates), 0)
    is_freed = np.zeros(len(allocates), dtype=bool)
    is_freed[source] = True
    if not allocates[source].all() or (source >= freed).any() or is_freed.sum() != len(source):
        raise ValueError("a buffer is freed twice, or before it is allocated")
    signed[freed] = -signed[source]
    return Unrolled(layout, signed)


def allocations_of(events: np.ndarray) -> np.ndarray:
    """For each event of a list, the position of the event that allocates its buffer."""
    allocated = np.flatnonzero(events > 0)
    of_row = np.empty(len(allocated), dtype=np.int64)
    of_row[events[allocated] - 1] = allocated
    return of_row[np.abs(events) - 1]


def unrolled(micro: MicroStep, repeats: Repeats, more: int) -> MicroStep:
    """A micro-step with more units than it was recorded with.

    Raises:
        ValueError: as :func:`unroll`, or an engine's hook would act in a loop.
    """
    events = signed_of(micro)
    allocation = np.flatnonzero(events > 0)
    result = unroll(events, repeats, more)
    layout, source = result.layout, micro.events.buffer[result.allocations]

    def rows(recorded: np.ndarray) -> np.ndarray:
        return result.rows(allocation[recorded]).astype(np.int32)

    def positions(recorded: np.ndarray) -> np.ndarray:
        return layout.outside(recorded).astype(np.int32)

    columns = micro.events.buffers
    buffers = Buffers(*(getattr(columns, name)[source] for name in Buffers.__dataclass_fields__))
    ready, marks, cache = micro.ready.copy(), micro.marks, micro.cache
    ready[:, 0], ready[:, 2] = positions(ready[:, 0]), rows(ready[:, 2])
    if marks is not None:
        marks = marks.copy()
        marks[:, 0] = positions(marks[:, 0])
    if cache is not None:
        cache = np.where(cache < 0, -1, rows(np.maximum(cache, 0)))
    return replace(
        micro, ready=ready, marks=marks, cache=cache, persistent=rows(micro.persistent),
        cuts=None if micro.cuts is None else positions(micro.cuts),
        outputs=None if micro.outputs is None else rows(micro.outputs),
        events=replace(micro.events, kind=np.sign(result.events).astype(np.int8),
                       buffer=(np.abs(result.events) - 1).astype(np.int32), moment=micro.events.moment[layout.origin],
                       step=micro.events.step[layout.origin], buffers=buffers))


def signed_of(micro: MicroStep) -> np.ndarray:
    """The events of a micro-step as :attr:`predictor.trace.recorder.Recording.events`."""
    return micro.events.kind.astype(np.int64) * (micro.events.buffer.astype(np.int64) + 1)


def are_consistent(micro: MicroStep, repeats: Repeats | None) -> bool:
    """Whether loops fit a micro-step. Those that come from files are checked with it, because a file may be damaged.

    Raises:
        ValueError: as :func:`unrolled`.
    """
    if repeats is None:
        return True
    length, blocks, frees = len(micro.events), repeats.blocks, repeats.frees
    ends, sizes = blocks[:, 0], blocks[:, 1]
    places = np.concatenate([frees[:, 0], frees[:, 1]])
    if not (repeats.units > 0 and frees.shape[1:] == (6,) and blocks.shape[1:] == (2,)
            and all(table.dtype == np.int32 for table in (blocks, frees))
            and (sizes > 0).all() and (ends - sizes >= np.append(0, ends[:-1])).all() and (ends <= length).all()
            and ((places >= 0) & (places < length)).all() and (frees[:, 5] >= -1).all() and (frees[:, 5] < length).all()
            and set(map(tuple, frees[:, 2:4].tolist())) <= set(RULES)
            and np.array_equal(unroll(signed_of(micro), repeats, 0).events, signed_of(micro))):
        return False
    unrolled(micro, repeats, 1)
    return True
