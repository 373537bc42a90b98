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


class Vocabulary:
    """Sizes and names of engine buffers as rows of the tables that the trace began; shared by all ranks."""

    def __init__(self, micro: MicroStep) -> None:
        self._events = micro.events
        self._names = {name: index for index, name in enumerate(micro.events.names)}
        self._constants: dict[int, int] = {}

    def size(self, size_bytes: int) -> int:
        """Row of a byte count in the size table."""
        return len(self._events.sizes) + self._constants.setdefault(size_bytes, len(self._constants))

    def buffers(self, attributes: Sequence[tuple[int, int, int, str, str]]) -> Buffers:
        """One row a buffer of a tape."""
        names = self._names
        rows = np.array([(self.size(size), stream, factor, names.setdefault(module, len(names)),
                          names.setdefault(operator, len(names)))
                         for size, stream, factor, module, operator in attributes], dtype=np.int32).reshape(-1, 5)
        size, stream, factor, module, operator = rows.T
        return Buffers(size, stream.astype(np.int8), factor.astype(np.int8), module, operator)

    def assemble(self, stretches: Iterable[tuple[Stretch, int]]) -> EventList:
        """One event list from stretches and the step number each one is; a stretch may repeat."""
        columns, steps, parts, offset = [], [], [], 0
        for stretch, step in stretches:
            columns.append(stretch.columns + np.array([[0], [offset], [0]], dtype=np.int32))
            steps.append(np.full(stretch.columns.shape[1], step, dtype=np.int8))
            parts += [self._events.buffers] * stretch.micro_steps + [stretch.buffers]
            offset += len(self._events.buffers) * stretch.micro_steps + len(stretch.buffers)
        kind, buffer, moment = np.concatenate(columns, axis=1)
        return EventList(
            kind=kind.astype(np.int8), buffer=buffer, moment=moment.astype(np.int8), step=np.concatenate(steps),
            buffers=Buffers.concatenate(parts), sizes=self._events.sizes.with_constants(list(self._constants)),
            names=tuple(self._names))


@dataclass(frozen=True, eq=False)
class Stretch:
    """Part of a run whose buffers are its own: events, and how many micro-steps' buffers come before the engine's."""

    columns: np.ndarray
    micro_steps: int
    buffers: Buffers
