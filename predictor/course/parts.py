"""Cuts a composed run into parts that can be played in any order: start-up, micro-steps, the optimizer step.

A run has one shape, and its first, second and third step. A course takes each micro-step from the run of its own batch:
of the first step's parts in its first step, of the second's in its second, and of the third's from then on, since an
engine allocates alike in all later steps. Buffers that live beyond their part are known by a name that is the same in
the runs of all shapes, so that a part frees what a part of another run has allocated.

The reference loop keeps one batch for the whole run. In a course each micro-step moves its own batch to the GPU, and
the batch before is freed when all of the new one is there, as ``batch = {name: tensor.cuda() …}`` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from predictor.events.events import FACTORS, MOMENTS, EventList, EventType, Factor, Moment, Tag
from predictor.events.instances import instances
from predictor.events.micro_step import MicroStep
from predictor.events.sizes import Workspace

_FORWARD, _BACKWARD, _OPTIMIZER_STEP = map(MOMENTS.index, (Moment.FORWARD, Moment.BACKWARD, Moment.OPTIMIZER_STEP))
INPUT: tuple[Hashable, ...] = ("input",)
"""The name of the buffers of a batch. They need no other: each batch replaces the one before as a whole."""
STEADY = 3
"""The step of a composed run from which all later ones are taken."""
Name = tuple[Hashable, ...]
"""A buffer that outlives its part: where it was made, its module, operator, factor, and its number among equal ones;
of a library's workspace, its function, whether backward made it, and its number."""


@dataclass(frozen=True, eq=False)
class Part:
    """The events of one part of a run.

    Attributes:
        events: the run.
        place: the number of the micro-step, or of the optimizer step, which comes last.
        kind: ``int8[m]``, types of the events.
        origin: ``int32[m]``, the position of each event in the run.
        number: ``int32[m]``, the buffer of each event: from 0 on those that live and die in the part, then ``made``,
            then ``used``.
        buffers: ``int32[n]``, the row of ``events.buffers`` of each number.
        made: names of the buffers that outlive the part, those of its batch first.
        waits: for each of them, whether a later part frees it.
        used: names of older buffers.
        frees: for each of ``used``, whether the part frees it.
        inputs: number of the first events, which allocate the batch, and of its buffers.
        backward: position of the first event of backward; 0 without one.
    """

    events: EventList
    place: int
    kind: np.ndarray
    origin: np.ndarray
    number: np.ndarray
    buffers: np.ndarray
    made: tuple[Name, ...]
    waits: tuple[bool, ...]
    used: tuple[Name, ...]
    frees: tuple[bool, ...]
    inputs: int
    backward: int

    @property
    def own(self) -> int:
        """The number of buffers that live and die in the part."""
        return len(self.buffers) - len(self.made) - len(self.used)

    def without_inputs(self) -> Part:
        """The part without the allocations of its batch, which is there already."""
        if not self.inputs:
            return self
        stay = np.ones(len(self.buffers), dtype=bool)
        stay[self.own : self.own + self.inputs] = False
        number = (np.cumsum(stay) - 1)[self.number[self.inputs :]].astype(np.int32)
        return replace(self, kind=self.kind[self.inputs :], origin=self.origin[self.inputs :], number=number,
                       buffers=self.buffers[stay], made=self.made[self.inputs :], waits=self.waits[self.inputs :],
                       inputs=0, backward=max(self.backward - self.inputs, 0))

    def only_inputs(self) -> Part:
        """The part's batch alone, as a loader brings it to the GPU before its step."""
        first = slice(self.own, self.own + self.inputs)
        return replace(self, kind=self.kind[: self.inputs], origin=self.origin[: self.inputs],
                       number=self.number[: self.inputs] - self.own, buffers=self.buffers[first],
                       made=self.made[: self.inputs], waits=self.waits[: self.inputs], used=(), frees=(), backward=0)

    def tag(self, position: int) -> Tag:
        """The tag of an event, by its position in the run."""
        return self.events[position].tag


@dataclass(frozen=True)
class FirstOnly:
    """A buffer that the first step of a run allocates and nothing frees, such as the workspace of a library.

    Attributes:
        buffer: its row of the run's buffers.
        at: number of events of a later step's part that come before its allocation.
    """

    name: Name
    buffer: int
    at: int


class CutRun:
    """A composed run, cut into its parts.

    Args:
        events: the run, of three steps, without an evaluation.
        micro: the traced micro-step that it repeats.
        micro_steps: micro-steps of each of its steps.
    """

    def __init__(self, events: EventList, micro: MicroStep, micro_steps: int) -> None:
        self.events, self._micro_steps = events, micro_steps
        self._instance = instances(events, micro)[0]
        buffers = events.buffers
        persistent = np.zeros(len(buffers), dtype=bool)
        first = np.flatnonzero(self._instance == 0)
        persistent[first[micro.persistent]] = True
        self._inputs = persistent & (buffers.factor == FACTORS.index(Factor.INPUTS))
        self._bounds = self._cut()
        self._part_of = np.empty(len(events), dtype=np.int32)
        for number, (begin, end) in enumerate(self._bounds.values()):
            self._part_of[begin:end] = number
        self._born, self._freed = self._lives()
        self._names = self._named()
        self._parts: dict[tuple[int, int], Part] = {}

    @property
    def start(self) -> Part:
        """Start-up."""
        return self._part(0, 0)

    def micro_step(self, step: int, index: int, count: int) -> Part:
        """A micro-step.

        Args:
            step: number of the step in the course, from 1 on.
            index: number of the micro-step in its step, from 0 on.
            count: micro-steps of the step.
        """
        last = self._micro_steps - 1
        place = last if index == count - 1 else min(index, max(last - 1, 0))
        return self._part(min(step, STEADY), place)

    def optimizer_step(self, step: int) -> Part:
        """The optimizer step of a step of the course."""
        return self._part(min(step, STEADY), self._micro_steps)

    def first_only(self, part: Part) -> list[FirstOnly]:
        """What the first step allocates and keeps at the place of a part.

        A course may come to a run in any micro-step, so that those after the first count what the first allocates.
        """
        places = {0, part.place} if part.place < self._micro_steps else {part.place}
        return [one for place in sorted(places) for one in self._first_only[place]]

    @cached_property
    def _first_only(self) -> list[list[FirstOnly]]:
        """For each place in a step."""
        result: list[list[FirstOnly]] = []
        for place in range(self._micro_steps + 1):
            first, later = self._part(1, place), self._part(STEADY, place)
            made = list(zip(first.made, first.waits, first.buffers[first.own :].tolist()))[first.inputs :]
            kept = [(name, row) for name, waits, row in made if not waits]
            aligned = _aligned(self._tokens(first), self._tokens(later)) if kept else np.empty(0)
            rows = first.buffers[first.number]
            result.append([FirstOnly(name, row, int(aligned[np.argmax(rows == row)])) for name, row in kept])
        return result

    def _tokens(self, part: Part) -> np.ndarray:
        """What an event is, for comparisons between steps."""
        rows, buffers = part.buffers[part.number], self.events.buffers
        parts = (part.kind.astype(np.int64), buffers.size[rows], buffers.module[rows], buffers.operator[rows])
        token = np.zeros(len(rows), dtype=np.int64)
        for column in parts:
            token = token * 1_000_003 + column
        return token

    # the cuts ---------------------------------------------------------------------------------------------------

    def _cut(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Begin and end of each part, by step and place: start-up is (0, 0), the optimizer step comes last."""
        events = self.events
        steps = [int(np.searchsorted(events.step, step)) for step in range(STEADY + 2)]
        bounds = {(0, 0): (steps[0], steps[1])}
        instance = np.where(self._inputs[events.buffer], -1, self._instance[events.buffer])
        instance[events.kind != EventType.ALLOCATE] = -1
        _, first = np.unique(instance, return_index=True)
        first = first[1:] if instance.min() < 0 else first  # the first event of each micro-step
        last = len(instance) - 1 - np.unique(instance[::-1], return_index=True)[1]
        last = last[1:] if instance.min() < 0 else last
        optimizer = np.append(np.flatnonzero(events.moment == _OPTIMIZER_STEP), len(events))
        for step in range(1, STEADY + 1):
            numbers = range((step - 1) * self._micro_steps, step * self._micro_steps)
            begins = [steps[step], *(self._begin(first[number]) for number in numbers[1:])]
            end = min(int(optimizer[np.searchsorted(optimizer, last[numbers[-1]])]), steps[step + 1])
            for place, (begin, stop) in enumerate(zip(begins, [*begins[1:], end])):
                bounds[step, place] = begin, stop
            bounds[step, self._micro_steps] = end, steps[step + 1]
        return bounds

    def _begin(self, first: int) -> int:
        """Where a micro-step begins whose first own event is at ``first``: the engine's events of its forward count."""
        others = np.flatnonzero(self.events.moment[:first] != _FORWARD)
        return int(others[-1]) + 1

    def _lives(self) -> tuple[np.ndarray, np.ndarray]:
        """The part in which each buffer is allocated, and that in which it is freed; -1 where none does."""
        events, lives = self.events, []
        for kind in (EventType.ALLOCATE, EventType.FREE):
            at = events.kind == kind
            part = np.full(len(events.buffers), -1, dtype=np.int32)
            part[events.buffer[at]] = self._part_of[at]
            lives.append(part)
        return lives[0], lives[1]

    @cached_property
    def _libraries(self) -> dict[int, str]:
        """Size row -> the function of its workspace, for workspaces that a library makes at its first call and keeps:
        one for the thread of forward and one for that of backward, whichever operator calls first."""
        sizes = self.events.sizes
        return {int(row): term.function for column, term in enumerate(sizes.terms)
                if isinstance(term, Workspace) and not term.dimensions
                for row in np.flatnonzero(sizes.coefficients[:, column])}

    def _named(self) -> dict[int, Name]:
        """The name of each buffer that outlives its part."""
        events, buffers = self.events, self.events.buffers
        places = list(self._bounds)
        outlives = (self._born != self._freed) & (self._born >= 0) & ~self._inputs
        made = events.buffer[events.kind == EventType.ALLOCATE]
        counts: Counter[tuple[int, Name]] = Counter()
        names: dict[int, Name] = {}
        in_backward = np.zeros(len(buffers), dtype=bool)
        in_backward[made] = events.moment[events.kind == EventType.ALLOCATE] == _BACKWARD
        for row in made[outlives[made]].tolist():
            part = int(self._born[row])
            step, place = places[part]
            kind = "start" if not step else "optimizer" if place == self._micro_steps else min(place, 1)
            name: Name = (kind, events.names[buffers.module[row]], events.names[buffers.operator[row]],
                          int(buffers.factor[row]))
            if library := self._libraries.get(int(buffers.size[row])):
                name = library, bool(in_backward[row])
            names[row] = (*name, counts[part, name])
            counts[part, name] += 1
        return names

    # the parts --------------------------------------------------------------------------------------------------

    def _part(self, step: int, place: int) -> Part:
        if (step, place) not in self._parts:
            self._parts[step, place] = self._made(step, place)
        return self._parts[step, place]

    @cached_property
    def _freed_names(self) -> set[Name]:
        """Names of the buffers that a later part frees."""
        return {name for row, name in self._names.items() if self._freed[row] >= 0}

    def _made(self, step: int, place: int) -> Part:
        events, part = self.events, list(self._bounds).index((step, place))
        begin, end = self._bounds[step, place]
        origin = np.arange(begin, end, dtype=np.int32)
        origin = origin[~self._inputs[events.buffer[begin:end]]]
        inputs = self._allocations_of_inputs if step and place < self._micro_steps else origin[:0]
        origin = np.concatenate([inputs, origin])
        rows = events.buffer[origin]
        kind = events.kind[origin]
        mine = list(dict.fromkeys(rows.tolist()))
        is_input = self._inputs[mine]
        born, freed = self._born[mine] == part, self._freed[mine] == part
        silent = self._born[mine] < 0  # the buffers of events that concern none
        groups: tuple[list[int], ...] = ([], [], [])
        for row, own, made in zip(mine, (born & freed & ~is_input) | silent, born | is_input):
            groups[0 if own else 1 if made else 2].append(row)
        buffers = np.array([row for group in groups for row in group], dtype=np.int32)
        number = np.empty(len(events.buffers), dtype=np.int32)
        number[buffers] = np.arange(len(buffers))
        backward = np.flatnonzero(events.moment[origin] == _BACKWARD)
        made_names = tuple(self._names.get(row, INPUT) for row in groups[1])
        return Part(
            events, place, np.ascontiguousarray(kind), origin, number[rows], buffers, made_names,
            tuple(self._freed[row] >= 0 or (step > 1 and name in self._freed_names)
                  for row, name in zip(groups[1], made_names)),
            tuple(self._names[row] for row in groups[2]), tuple((self._freed[groups[2]] == part).tolist()),
            len(inputs), int(backward[0]) if len(backward) else 0)

    @cached_property
    def _allocations_of_inputs(self) -> np.ndarray:
        events = self.events
        return np.flatnonzero(self._inputs[events.buffer] & (events.kind == EventType.ALLOCATE)).astype(np.int32)


def _aligned(first: np.ndarray, later: np.ndarray) -> np.ndarray:
    """For each event of the first step's part, how many events of the later one come before it.

    The first step has all events of a later one, and some more.
    """
    result, at = np.empty(len(first), dtype=np.int64), 0
    later_list: list[int] = later.tolist()
    for index, token in enumerate(first.tolist()):
        result[index] = at
        at += at < len(later_list) and later_list[at] == token
    return result

