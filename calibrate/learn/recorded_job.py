"""Converts a recorded job into events for the simulated allocator: requests and frees in order, with tags.

Segments and splits are left out, because the simulated allocator decides them.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from calibrate.job.factors import NEVER, BufferLife, factor_of, stack_lines
from calibrate.job.side_notes import EMPTY_CACHE, GRADIENT, PARAMETER, RECORD_STREAM, SYNCHRONIZE, Note
from predictor.common.arrays import load as arrays_of
from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.events.events import FACTORS, MOMENTS, EventType, Factor, Moment
from predictor.events.sizes import Shape
from predictor.snapshot.records import Action, Snapshot, Trace

STEPS = 3
MOMENT_NUMBERS = {moment.value: number for number, moment in enumerate(MOMENTS)}
MOST_STREAMS = 100


@dataclass(frozen=True, eq=False)
class RecordedJob:
    """The events and buffers of one recorded job.

    Attributes:
        kind, buffer, moment, step: one entry per event, as in :class:`predictor.events.events.EventList`.
        size, stream, factor: one entry per buffer: bytes, stream number, index into FACTORS.
        module, operator: names, one per buffer.
        peaks: measured ``requested_bytes``, ``allocated_bytes``, ``reserved_bytes``.
        parameters: parameters and buffers of the models that ran: ``name``, ``shape``, ``itemsize``, ``trainable``,
            ``buffer``.
        about: where it was recorded (``measured_on``, ``gpu``, …).
    """

    shape: Shape
    kind: np.ndarray
    buffer: np.ndarray
    moment: np.ndarray
    step: np.ndarray
    size: np.ndarray
    stream: np.ndarray
    factor: np.ndarray
    module: tuple[str, ...]
    operator: tuple[str, ...]
    peaks: dict[str, int]
    parameters: tuple[dict[str, Any], ...]
    about: dict[str, Any] = field(default_factory=dict)

    def label(self, event: int) -> tuple:
        """Everything that identifies an event, except its bytes."""
        row = int(self.buffer[event])
        return (int(self.kind[event]), row, self.operator[row], self.module[row], int(self.stream[row]),
                int(self.moment[event]), int(self.step[event]))

    def where(self, event: int) -> str:
        """A description of an event for messages."""
        row = int(self.buffer[event])
        does = {1: "allocates", -1: "frees"}.get(int(self.kind[event]), "does")
        place = f" in {self.module[row]}" if self.module[row] else ""
        return (f"{MOMENTS[self.moment[event]].value} of step {self.step[event]} {does} "
                f"{self.operator[row] or 'a buffer'}{place}")


COLUMNS = ("kind", "buffer", "moment", "step", "size", "stream", "factor")


def save(path: str | os.PathLike[str], job: RecordedJob) -> None:
    """Writes a job, whole or not at all."""
    header = {"shape": list(job.shape), "module": job.module, "operator": job.operator, "peaks": job.peaks,
              "parameters": job.parameters, "about": job.about}
    stream = io.BytesIO()
    np.savez_compressed(stream, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
                        **{name: getattr(job, name) for name in COLUMNS})
    write_whole(os.fspath(path), stream.getvalue())


def load(path: str | os.PathLike[str]) -> RecordedJob | None:
    """A job that :func:`save` wrote; None if the file is missing or damaged."""
    try:
        arrays, header = arrays_of(path)
        columns = {name: arrays[name] for name in COLUMNS}
        return RecordedJob(shape=Shape(*header["shape"]), module=tuple(header["module"]),
                        operator=tuple(header["operator"]), peaks=header["peaks"],
                        parameters=tuple(header["parameters"]), about=header["about"], **columns)
    except Exception:  # recorded again
        return None


def from_history(snapshot: Snapshot, shape: Shape, peaks: dict[str, int], about: dict[str, Any],
                 name: str) -> RecordedJob:
    """The events of a memory history that ``calibrate.job.history`` wrote.

    Args:
        name: name of the job in messages.

    Raises:
        InputError: the job ran out of memory or came near it, or the history is not complete.
    """
    trace = max(snapshot.traces, key=len, default=None)
    if trace is None or not len(trace) or not isinstance(snapshot.beside, dict):
        raise InputError(f"{name}: its history is empty: did the job use the GPU?")
    return _Reader(trace, snapshot.beside, name).read(shape, peaks, about)


class _Place(NamedTuple):
    """Step and moment of an entry. ``moment`` is an index into MOMENTS, ``metadata`` is the entry's JSON object."""

    moment: int
    step: int
    metadata: dict[str, Any]


class _Event(NamedTuple):
    """An event as in :class:`predictor.events.events.EventList`."""

    kind: int
    buffer: int
    moment: int
    step: int


class _Reader:
    """Reads a memory history in one pass."""

    def __init__(self, trace: Trace, beside: dict[str, Any], name: str) -> None:
        self._trace, self._name = trace, name
        self._beside = beside
        self._known: dict[str, _Place] = {}
        self._events: list[_Event] = []
        self._lives: list[dict[str, Any]] = []
        self._streams: dict[int, int] = {0: 0}
        self._open: dict[int, int] = {}  # address -> buffer
        self._at = (0, 0)

    def read(self, shape: Shape, peaks: dict[str, int], about: dict[str, Any]) -> RecordedJob:
        trace = self._trace
        notes = sorted((Note(*note) for note in self._beside["notes"]), key=lambda note: note.allocated + note.freed)
        notes.reverse()  # the next one is the last
        actions, addresses = trace.action.tolist(), trace.address.tolist()
        sizes, streams = trace.size.tolist(), trace.stream.tolist()
        if Action.OOM in actions:
            raise InputError(f"{self._name}: ran out of GPU memory: learn at smaller shapes, or on a larger GPU")
        allocated = freed = 0
        emptied = False
        for index, action in enumerate(actions):
            if action not in (Action.ALLOC, Action.FREE_REQUESTED, Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
                continue
            while notes and notes[-1].allocated <= allocated and notes[-1].freed <= freed:
                emptied |= self._note(notes.pop())
            if action == Action.ALLOC:
                self._allocate(index, addresses[index], sizes[index], streams[index])
                allocated, emptied = allocated + 1, False
            elif action == Action.FREE_REQUESTED:
                deferred = actions[index + 1:index + 2] != [Action.FREE_COMPLETED]
                self._free(index, addresses[index], deferred)
                freed += 1
            elif not emptied:
                self._segment_released(actions, index)
        while notes:
            self._note(notes.pop())
        return self._result(shape, peaks, about)

    def _segment_released(self, actions: list[int], index: int) -> None:
        """A segment was released without an emptied cache: memory was short, or a library emptied the cache in C++."""
        ahead = next((a for a in actions[index:] if a not in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP,
                                                              Action.FREE_COMPLETED)), None)
        if ahead in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            raise InputError(f"{self._name}: memory ran so short that PyTorch gave segments back to go on: learn at "
                             "smaller shapes, or on a larger GPU")
        if not self._events or self._events[-1].kind != EventType.EMPTY_CACHE:
            self._mark(EventType.EMPTY_CACHE)

    def _place(self, index: int) -> _Place:
        text = self._trace.user_metadata[index]
        if text not in self._known:
            try:
                metadata = json.loads(text)
                moment, step = MOMENT_NUMBERS[metadata["moment"]], min(int(metadata["step"]), 127)
                self._known[text] = _Place(moment, step, metadata)
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{self._name}: entry {index:,} of its history does not say where it "
                                 "belongs") from None
        return self._known[text]

    def _allocate(self, index: int, address: int, size: int, stream: int) -> None:
        moment, step, metadata = self._place(index)
        self._at = moment, step
        number = self._streams.setdefault(stream, len(self._streams))
        if number >= MOST_STREAMS:
            raise InputError(f"{self._name}: uses more than {MOST_STREAMS} streams")
        buffer = self._open[address] = len(self._lives)
        self._lives.append({"address": address, "size": size, "stream": number, "entry": index,
                            "born": (step, moment), "died": None, "operator": metadata["operator"],
                            "module": metadata["module"], "inside": bool(metadata.get("inside")), "parameters": [],
                            "gradient": False, "brief": False})
        self._events.append(_Event(1, buffer, moment, step))

    def _free(self, index: int, address: int, deferred: bool) -> None:
        buffer = self._open.pop(address, None)
        if buffer is None:
            raise InputError(f"{self._name}: its history begins in the middle of the job (entry {index:,} frees what "
                             "it never allocated)")
        moment, step, _ = self._place(index)
        self._at = moment, step
        life = self._lives[buffer]
        life["died"] = step, moment
        if deferred and not life.get("shared"):  # C++ code recorded another stream; the history does not say which one
            self._share(buffer, 0 if life["stream"] else 1)
        self._events.append(_Event(-1, buffer, moment, step))

    def _share(self, buffer: int, stream: int) -> None:
        self._lives[buffer]["shared"] = True
        self._events.append(_Event(EventType.RECORD_STREAM + stream, buffer, *self._at))

    def _note(self, note: Note) -> bool:
        """Apply a note. Returns True for an emptied cache."""
        event, address = note.event, note.address
        if event in (EMPTY_CACHE, SYNCHRONIZE):
            self._mark(EventType.EMPTY_CACHE if event == EMPTY_CACHE else EventType.SYNCHRONIZE)
            return event == EMPTY_CACHE
        buffer = self._buffer_at(address)
        if buffer is None:
            return False
        life = self._lives[buffer]
        if event == PARAMETER:
            life["parameters"].append(note.name.rpartition(".")[0])
        elif event == GRADIENT and address == life["address"]:
            life["gradient"] = True
            life["module"] = life["module"] or note.name.rpartition(".")[0]
        elif event == RECORD_STREAM:
            number = self._streams.setdefault(note.stream, len(self._streams))
            if number != life["stream"]:
                self._share(buffer, number)
        return False

    def _buffer_at(self, address: int) -> int | None:
        if address in self._open:
            return self._open[address]
        return next((buffer for start, buffer in self._open.items()
                     if start <= address < start + self._lives[buffer]["size"]), None)

    def _mark(self, kind: EventType) -> None:
        """Add an event that concerns no buffer, such as a synchronization. The event gets a buffer of 0 bytes."""
        buffer = len(self._lives)
        moment, step = self._at
        self._lives.append({"address": 0, "size": 0, "stream": 0, "entry": None, "born": (step, moment),
                            "operator": kind.name.lower(), "module": ""})
        self._events.append(_Event(kind, buffer, moment, step))

    def _result(self, shape: Shape, peaks: dict[str, int], about: dict[str, Any]) -> RecordedJob:
        self._cut()
        self._find_brief()
        factors = [FACTORS.index(self._factor(life)) for life in self._lives]
        kind, buffer, moment, step = (np.array(column) for column in zip(*self._events))
        return RecordedJob(
            shape=shape, kind=kind.astype(np.int8), buffer=buffer.astype(np.int32), moment=moment.astype(np.int8),
            step=step.astype(np.int8), size=np.array([life["size"] for life in self._lives], dtype=np.int64),
            stream=np.array([life["stream"] for life in self._lives], dtype=np.int8),
            factor=np.array(factors, dtype=np.int8), module=tuple(self._module(life) for life in self._lives),
            operator=tuple(life["operator"] for life in self._lives), peaks=peaks,
            parameters=tuple(self._beside["parameters"]), about=about)

    def _cut(self) -> None:
        """Leave out events after the third step, and buffers that are allocated only then."""
        last = max((at for at, event in enumerate(self._events) if event.step <= STEPS), default=-1)
        self._events = self._events[:last + 1]
        buffers = max((event.buffer for event in self._events), default=-1) + 1
        del self._lives[buffers:]
        freed = {event.buffer for event in self._events if event.kind == -1}
        for number, life in enumerate(self._lives):
            if number not in freed:
                life["died"] = None

    def _find_brief(self) -> None:
        """Mark buffers that are freed before any other operator allocates."""
        waiting: list[int] = []
        last = None
        for kind, buffer, moment, step in self._events:
            life = self._lives[buffer]
            if kind == 1:
                call = life["operator"], life["module"], moment, step
                if call != last:
                    waiting, last = [], call
                waiting.append(buffer)
            elif kind == -1 and buffer in waiting:
                life["brief"] = True

    def _factor(self, life: dict[str, Any]) -> Factor:
        if life["entry"] is None:
            return Factor.ALLOCATOR
        died = NEVER if life["died"] is None else _step_and_moment(life["died"])
        return factor_of(BufferLife(
            life["operator"], life["module"], _step_and_moment(life["born"]), died, life["brief"],
            life["inside"], self._stack(life["entry"]), bool(life["parameters"]), life["gradient"]))

    def _stack(self, entry: int) -> tuple[str, ...]:
        return stack_lines((frame.filename, frame.name) for frame in self._trace.frames(entry))

    def _module(self, life: dict[str, Any]) -> str:
        """The module of a parameter; empty for a flat buffer with parameters of several modules."""
        owners = set(life.get("parameters", ()))
        if owners:
            return owners.pop() if len(owners) == 1 else ""
        return life["module"]


def _step_and_moment(at: tuple[int, int]) -> tuple[int, Moment]:
    return at[0], MOMENTS[at[1]]
