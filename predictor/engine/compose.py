"""Composes the event list of a run from stretches: start-up, and steps of traced micro-steps with the engine's events.

Within a step, the buffers of its micro-steps are numbered first, then those of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from predictor.engine.setup import STEPS
from predictor.engine.tape import EngineBuffers, Tape
from predictor.events.events import Buffers, EventList
from predictor.events.micro_step import MicroStep


class RankPeak(NamedTuple):
    """Peak requested bytes of a rank: of its whole run, and of its steps without start-up.

    The second compares ranks whose highest peak is that of start-up.
    """

    run_bytes: int
    steps_bytes: int


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
