"""Builds the event list of a run: start-up, then steps of traced micro-steps with engine buffers between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from predictor.events import FACTORS, MOMENTS, Buffers, EventList, Factor, Moment
from predictor.formula import MicroStep

MAIN_STREAM = 0


@dataclass
class Section:
    """A stretch of a run whose buffers are its own: start-up, or one optimizer step.

    Buffers are numbered within the section: first those of its micro-steps, then the engine's.
    """

    micro: MicroStep
    micro_steps: int = 0
    _kind: list = field(default_factory=list)
    _buffer: list = field(default_factory=list)
    _moment: list = field(default_factory=list)
    _attributes: list[tuple[int, int, Factor, str, str]] = field(default_factory=list)
    _pending: list[tuple[int, int, int]] = field(default_factory=list)
    moment: Moment = Moment.INIT
    _position: int = 0

    @property
    def _first_engine_buffer(self) -> int:
        return self.micro_steps * len(self.micro.events.buffers)

    def allocate(self, size_bytes: int, factor: Factor, operator: str, *, module: str = "",
                 stream: int = MAIN_STREAM) -> int:
        """An engine's allocation, now; returns its buffer."""
        buffer = self._first_engine_buffer + len(self._attributes)
        self._attributes.append((size_bytes, stream, factor, module, operator))
        self._pending.append((self._position, 1, buffer))
        return buffer

    def free(self, buffer: int) -> None:
        """The buffer dies now."""
        self._pending.append((self._position, -1, buffer))

    def gradient(self, micro_step: int, ready_row: int) -> int:
        """Buffer of the gradient that a row of ``ready`` completes, in one micro-step."""
        return micro_step * len(self.micro.events.buffers) + int(self.micro.ready[ready_row, 2])

    def at(self, ready_row: int) -> None:
        """What follows happens in the hook of this gradient, inside the traced micro-step."""
        self._position = int(self.micro.ready[ready_row, 0])

    def run_micro_step(self, index: int, *, with_persistent: bool) -> None:
        """Play the traced micro-step, with what was said since :meth:`at` in its places."""
        events = self.micro.events
        keep = slice(None)
        if not with_persistent and len(self.micro.persistent):
            keep = ~np.isin(events.buffer, self.micro.persistent)
        offset = index * len(events.buffers)
        columns = np.stack([events.kind.astype(np.int32), events.buffer + offset, events.moment.astype(np.int32)])
        positions, kinds, buffers = (np.array(column, dtype=np.int32)
                                     for column in zip(*self._pending)) if self._pending else ([], [], [])
        kept = np.ones(len(events), dtype=bool)
        kept[:] = keep if isinstance(keep, np.ndarray) else True
        if len(positions):
            backward = np.full(len(positions), MOMENTS.index(Moment.BACKWARD), dtype=np.int32)
            merged = np.insert(columns, positions, np.stack([kinds, buffers, backward]), axis=1)
            kept = np.insert(kept, positions, True)
        else:
            merged = columns
        kind, buffer, moment = merged[:, kept]
        self._kind.append(kind)
        self._buffer.append(buffer)
        self._moment.append(moment)
        self._pending, self._position = [], 0

    def flush(self) -> None:
        """What was said since the last micro-step happens here, in order."""
        if self._pending:
            _, kinds, buffers = zip(*self._pending)
            self._kind.append(np.array(kinds, dtype=np.int32))
            self._buffer.append(np.array(buffers, dtype=np.int32))
            self._moment.append(np.full(len(kinds), MOMENTS.index(self.moment), dtype=np.int32))
            self._pending = []

    def enter(self, moment: Moment) -> None:
        """The outermost call changes."""
        self.flush()
        self.moment = moment


def assemble(micro: MicroStep, sections: Sequence[tuple[Section, int]]) -> EventList:
    """One event list from sections and the step number each one is; a section may repeat."""
    events = micro.events
    names = {name: index for index, name in enumerate(events.names)}
    constants: dict[int, int] = {}
    kinds, buffers, moments, steps, parts, offset = [], [], [], [], [], 0
    prepared: dict[int, Buffers] = {}
    for section, step in sections:
        section.flush()
        if id(section) not in prepared:
            prepared[id(section)] = _section_buffers(section, names, constants)
        part = prepared[id(section)]
        kinds += section._kind
        buffers += [buffer + offset for buffer in section._buffer]
        moments += section._moment
        steps.append(np.full(sum(map(len, section._kind)), step, dtype=np.int8))
        parts.append(part)
        offset += len(part)
    return EventList(
        kind=np.concatenate(kinds).astype(np.int8),
        buffer=np.concatenate(buffers),
        moment=np.concatenate(moments).astype(np.int8),
        step=np.concatenate(steps),
        buffers=Buffers.concatenate(parts),
        sizes=events.sizes.with_constants(list(constants)),
        names=tuple(names),
    )


def _section_buffers(section: Section, names: dict[str, int], constants: dict[int, int]) -> Buffers:
    first_constant = len(section.micro.events.sizes)
    rows = section._attributes
    factors = {factor: index for index, factor in enumerate(FACTORS)}
    own = Buffers(
        size=np.array([first_constant + constants.setdefault(size, len(constants)) for size, *_ in rows], np.int32),
        stream=np.array([stream for _, stream, *_ in rows], np.int8),
        factor=np.array([factors[factor] for _, _, factor, _, _ in rows], np.int8),
        module=np.array([names.setdefault(module, len(names)) for *_, module, _ in rows], np.int32),
        operator=np.array([names.setdefault(operator, len(names)) for *_, operator in rows], np.int32),
    )
    return Buffers.concatenate([section.micro.events.buffers] * section.micro_steps + [own])
