"""Plays the parts of a course, one after another, through one simulated allocator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from predictor.allocator.session import Failure, Session, State
from predictor.allocator.simulate import Columns, Device
from predictor.course.parts import FirstOnly, Name, Part
from predictor.events.events import EventType, Tag

FIRST_ROOM = 1024
"""Numbers that there are at first for buffers that outlive their part."""
NOTHING = 0
"""The number of a buffer of no bytes."""
ADDED = -1
"""The origin of an event that no part has."""
Sizes = Callable[[np.ndarray], np.ndarray]
"""Gives the bytes of rows of a run's buffers, at one shape."""


@dataclass(frozen=True)
class Shortage:
    """An allocation that ran out of memory: its origin, and what the allocator held, in bytes.

    ``tried_to_allocate_bytes`` is the segment that the driver refused, as PyTorch's message has it.
    """

    tag: Tag
    requested_bytes: int
    tried_to_allocate_bytes: int
    allocated_bytes: int
    reserved_bytes: int


class Player:
    """An allocator with the buffers that live from part to part.

    Buffers that outlive their part have numbers from 1 to ``room - 1``; those of the part that is played follow.

    Args:
        device: the allocator and its memory.
        held: how many batches a micro-step finds on the GPU when it brings its own: 1 for a loop that replaces the last
            batch, 2 for a loader that is one batch ahead, None for a loop that trains on one batch only.

    Attributes:
        unmatched: buffers that parts would free or use, and that the parts before have not made. It stays 0 where the
            runs of all batches agree on what lives from part to part.
    """

    def __init__(self, device: Device, held: int | None = 1) -> None:
        self.unmatched, self._held = 0, held
        self._session = Session(device)
        self._room = FIRST_ROOM
        self._unused = list(range(FIRST_ROOM - 1, NOTHING, -1))
        self._sizes, self._streams = np.zeros(FIRST_ROOM, np.int64), np.zeros(FIRST_ROOM, np.int32)
        self._waiting: dict[Name, deque[int]] = {}
        self._kept: set[Name] = set()
        self._batches: deque[list[int]] = deque()
        self._evaluated: deque[list[int]] = deque()

    def state(self) -> State:
        """The allocator's counters now."""
        return self._session.state()

    def reset_peaks(self) -> None:
        """Sets the peaks back to what is held now."""
        self._session.reset_peaks()

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self._run(np.array([EventType.EMPTY_CACHE], np.int8), np.array([NOTHING], np.int32))

    def free_evaluated(self) -> None:
        """Frees the last batch of an evaluation."""
        for batch in self._evaluated:
            self._run(np.full(len(batch), EventType.FREE, np.int8), np.array(batch, np.int32))
            self._unused += batch
        self._evaluated.clear()

    def play(self, part: Part, sizes: Sizes, first_only: Sequence[FirstOnly] = (), *,
             empties_cache: bool = False, evaluates: bool = False) -> Shortage | None:
        """Plays a part, up to an allocation that runs out of memory.

        Args:
            first_only: what the first step of the part's run allocates at this place and keeps. It is added where no
                run has allocated it yet.
            empties_cache: whether the loop empties the cache before backward (``torch_empty_cache_steps``).
            evaluates: whether the part's batch is one of an evaluation, beside which that of training stays.
        """
        batches, held = (self._evaluated, 1) if evaluates else (self._batches, self._held)
        if held is None and batches:
            part = part.without_inputs()
        missing = [one for one in first_only if one.name not in self._kept and one.name not in part.made]
        new = self._new(len(part.made) + len(missing))
        used, freed = self._used(part)
        self._make_room(part.own)
        row_bytes, streams = sizes(part.buffers), part.events.buffers.stream
        own, made = slice(self._room, self._room + part.own), new[: len(part.made)]
        for column, values in ((self._sizes, row_bytes), (self._streams, streams[part.buffers])):
            column[own] = values[: part.own]
            column[made] = values[part.own :][: len(made)]
        numbers = np.concatenate([np.arange(own.start, own.stop), made, used]).astype(np.int32)[part.number]
        at, kinds, added = [], [], []
        if part.inputs:
            last = batches.popleft() if held == len(batches) else []
            at, kinds, added = [part.inputs] * len(last), [EventType.FREE] * len(last), last
            freed += last
            batches.append(made[: part.inputs])
        if missing:
            rows, extra = np.array([one.buffer for one in missing]), new[len(part.made):]
            self._sizes[extra], self._streams[extra] = sizes(rows), streams[rows]
            at, added = at + [min(one.at, len(part.kind)) for one in missing], added + extra
            kinds = kinds + [EventType.ALLOCATE] * len(missing)
        if empties_cache and part.backward:
            at, kinds, added = at + [part.backward], kinds + [EventType.EMPTY_CACHE], added + [NOTHING]
        self._keep(part, made, missing)
        failure = self._run(np.insert(part.kind, at, kinds), np.insert(numbers, at, added))
        self._unused += freed
        if failure is None:
            return None
        origin = np.insert(part.origin, at, ADDED)[failure.index]
        tag = part.tag(int(origin)) if origin != ADDED else self._tag(part, missing)
        error = failure.error
        return Shortage(tag, error.requested_bytes, error.tried_to_allocate_bytes, error.allocated_bytes,
                        error.reserved_bytes)

    @staticmethod
    def _tag(part: Part, missing: Sequence[FirstOnly]) -> Tag:
        """The origin of an added allocation; of several, that of the first."""
        events, row = part.events, missing[0].buffer
        return events[int(np.flatnonzero(events.buffer == row)[0])].tag

    def _run(self, kinds: np.ndarray, numbers: np.ndarray) -> Failure | None:
        return self._session.play(Columns(kinds, numbers, self._sizes, self._streams))

    # numbers of buffers -----------------------------------------------------------------------------------------

    def _new(self, count: int) -> list[int]:
        """Numbers for buffers that outlive their part. No other buffers are alive between parts, so these may grow."""
        while len(self._unused) < count:
            old, self._room = self._room, 2 * self._room
            self._unused[:0] = range(self._room - 1, old - 1, -1)
        self._make_room(0)
        return [self._unused.pop() for _ in range(count)]

    def _make_room(self, own: int) -> None:
        more = self._room + own - len(self._sizes)
        if more > 0:
            self._sizes, self._streams = (np.concatenate([column, np.zeros(more, column.dtype)])
                                          for column in (self._sizes, self._streams))

    def _used(self, part: Part) -> tuple[list[int], list[int]]:
        """The numbers of the older buffers of a part, and of those that it frees."""
        used, freed = [], []
        for name, frees in zip(part.used, part.frees):
            waiting = self._waiting.get(name)
            if not waiting:
                self.unmatched += 1
                used.append(NOTHING)
                continue
            used.append(waiting.popleft() if frees else waiting[0])
            if frees:
                freed.append(used[-1])
        return used, freed

    def _keep(self, part: Part, made: Sequence[int], missing: Sequence[FirstOnly]) -> None:
        """Remembers the buffers that a part leaves."""
        self._kept.update(one.name for one in missing)
        for name, waits, number in list(zip(part.made, part.waits, made))[part.inputs :]:
            if waits:
                self._waiting.setdefault(name, deque()).append(number)
            else:
                self._kept.add(name)
