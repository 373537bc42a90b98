"""Builds the event list of a run from stretches: start-up, traced micro-steps with engine events between, steps.

Within a step buffers are numbered once: those of its micro-steps first, then the engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from predictor.events import FACTORS, MOMENTS, Buffers, EventList, Factor, Moment
from predictor.formula import MicroStep

MAIN_STREAM = 0
_FACTOR = {factor: index for index, factor in enumerate(FACTORS)}
_MOMENT = {moment: index for index, moment in enumerate(MOMENTS)}


@dataclass
class Tape:
    """An engine's own events, as they are said. Buffers are numbered from ``first``.

    Attributes:
        moment: the outermost call they happen in.
        position: before which event of a traced micro-step they happen, when they are woven into one.
    """

    first: int = 0
    moment: Moment = Moment.INIT
    position: int = 0
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    attributes: list[tuple[int, int, int, str, str]] = field(default_factory=list)

    def allocate(self, size_bytes: int, factor: Factor, operator: str, *, module: str = "",
                 stream: int = MAIN_STREAM) -> int:
        """A new buffer lives from now on."""
        buffer = self.declare(size_bytes, factor, operator, module=module, stream=stream)
        self.rows.append((1, buffer, _MOMENT[self.moment], self.position))
        return buffer

    def declare(self, size_bytes: int, factor: Factor, operator: str, *, module: str = "",
                stream: int = MAIN_STREAM) -> int:
        """A buffer that is allocated later, by :meth:`again`."""
        self.attributes.append((size_bytes, stream, _FACTOR[factor], module, operator))
        return self.first + len(self.attributes) - 1

    def again(self, buffer: int) -> None:
        """A declared buffer lives from now on."""
        self.rows.append((1, buffer, _MOMENT[self.moment], self.position))

    def free(self, buffer: int) -> None:
        """The buffer dies now."""
        self.rows.append((-1, buffer, _MOMENT[self.moment], self.position))

    def columns(self) -> np.ndarray:
        """``int32[4, events]``: kind, buffer, moment, position."""
        return np.array(self.rows, dtype=np.int32).reshape(-1, 4).T


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


@dataclass(frozen=True, eq=False)
class Stretch:
    """Part of a run whose buffers are its own: events, and how many micro-steps' buffers come before the engine's."""

    columns: np.ndarray
    micro_steps: int
    attributes: Sequence[tuple[int, int, int, str, str]]


def assemble(micro: MicroStep, stretches: Iterable[tuple[Stretch, int]]) -> EventList:
    """One event list from stretches and the step number each one is; a stretch may repeat."""
    events = micro.events
    vocabulary = _Vocabulary(events)
    columns, steps, parts, offset = [], [], [], 0
    prepared: dict[int, Buffers] = {}
    for stretch, step in stretches:
        if id(stretch) not in prepared:
            own = vocabulary.buffers(stretch.attributes)
            prepared[id(stretch)] = Buffers.concatenate([events.buffers] * stretch.micro_steps + [own])
        columns.append(stretch.columns + np.array([[0], [offset], [0]], dtype=np.int32))
        steps.append(np.full(stretch.columns.shape[1], step, dtype=np.int8))
        parts.append(prepared[id(stretch)])
        offset += len(parts[-1])
    kind, buffer, moment = np.concatenate(columns, axis=1)
    return EventList(
        kind=kind.astype(np.int8), buffer=buffer, moment=moment.astype(np.int8), step=np.concatenate(steps),
        buffers=Buffers.concatenate(parts), sizes=events.sizes.with_constants(list(vocabulary.constants)),
        names=tuple(vocabulary.names))


class _Vocabulary:
    """Turns sizes and names of engine buffers into rows of the tables that the trace began."""

    def __init__(self, events: EventList) -> None:
        self.names = {name: index for index, name in enumerate(events.names)}
        self.constants: dict[int, int] = {}
        self._first_constant = len(events.sizes)

    def buffers(self, attributes: Sequence[tuple[int, int, int, str, str]]) -> Buffers:
        """One row a buffer."""
        names, constants = self.names, self.constants
        rows = np.array([(self._first_constant + constants.setdefault(size, len(constants)), stream, factor,
                          names.setdefault(module, len(names)), names.setdefault(operator, len(names)))
                         for size, stream, factor, module, operator in attributes], dtype=np.int32).reshape(-1, 5)
        size, stream, factor, module, operator = rows.T
        return Buffers(size, stream.astype(np.int8), factor.astype(np.int8), module, operator)
