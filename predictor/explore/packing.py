"""Packs a composed run: a reference to the traced micro-step, which many runs share, plus the engine's own events.

Unpacking gives the same run. A run consists of start-up and steps. A step is a sequence of traced micro-steps, with
the engine's own events in between.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from predictor.common.errors import InputError
from predictor.events.events import EventList, EventType
from predictor.events.instances import instances
from predictor.events.micro_step import MicroStep
from predictor.explore.columns import Store


class Names:
    """Numbers equal values in order of first use, so that each is stored once."""

    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}

    def __call__(self, row: Hashable) -> int:
        return self.rows.setdefault(row, len(self.rows))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


@dataclass
class Tables:
    """Tables that all runs of a page share.

    Attributes:
        names: names of modules and operators.
        made: (bytes, stream, factor, module, operator) of the engines' own buffers.
    """

    store: Store = field(default_factory=Store)
    names: Names = field(default_factory=Names)
    made: Names = field(default_factory=Names)


def pack_traced(micro: MicroStep, tables: Tables) -> dict[str, int]:
    """The traced micro-step, as column numbers. A free names its buffer by counting back from the newest one."""
    events, buffers = micro.events, micro.events.buffers
    names = np.array([tables.names(name) for name in events.names])
    order, place = _in_order(events.kind, events.buffer, len(buffers))
    columns = {
        "what": _told(events.kind, place[events.buffer]), "moment": np.diff(events.moment, prepend=0),
        "persistent": np.sort(place[micro.persistent]),
        "size": buffers.size[order], "stream": buffers.stream[order], "factor": buffers.factor[order],
        "module": np.diff(names[buffers.module[order]], prepend=0), "operator": names[buffers.operator[order]]}
    return {name: tables.store.add(column) for name, column in columns.items()}


@dataclass(frozen=True, eq=False)
class PackedRun:
    """A packed run: the column numbers of its start-up and of its steps, and its number of micro-steps."""

    start: tuple[int, ...]
    steps: tuple[int, ...]
    instances: int


def pack_run(run: EventList, micro: MicroStep, tables: Tables) -> PackedRun:
    """Packs a composed run that repeats this traced micro-step.

    Raises:
        InputError: the run does not have the layout that the module's docstring describes.
    """
    instance, traced = instances(run, micro)
    events, of, begun = micro.events, instance[run.buffer], traced[run.buffer]
    _, own_place = _in_order(run.kind[of < 0], run.buffer[of < 0], len(run.buffers))
    _, traced_place = _in_order(events.kind, events.buffer, len(events.buffers))
    happens = np.zeros((3, len(events.buffers)), dtype=bool)
    happens[events.kind, events.buffer] = True
    is_traced = (of >= 0) & (np.abs(run.kind) == 1) & happens[np.clip(run.kind, -1, 1), begun]
    _check(run, micro, is_traced, of, begun)

    rows = np.flatnonzero(~is_traced)
    take = np.diff(np.cumsum(is_traced)[rows], prepend=0)
    kind, owner = run.kind[rows], of[rows]
    made = (owner < 0) & (kind == EventType.ALLOCATE)
    argument = np.where(owner < 0, _own(kind, owner, own_place[run.buffer[rows]], made),
                        traced_place[begun[rows]])
    argument[made] = _made(run, run.buffer[rows[made]], tables)
    argument[np.isin(kind, (EventType.EMPTY_CACHE, EventType.SYNCHRONIZE))] = 0
    when = run.moment[rows].astype(int) * 8 + run.step[rows]
    cut = int(np.searchsorted(run.step[rows], 1))
    columns = (take, kind, owner + 1, argument, when)

    def stored(part: slice) -> tuple[int, ...]:
        return tuple(tables.store.add(np.diff(column[part], prepend=0) if number == 4 else column[part])
                     for number, column in enumerate(columns))

    return PackedRun(stored(slice(0, cut)), stored(slice(cut, None)), int(of.max()) + 1)


def _in_order(kind: np.ndarray, buffer: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Buffers in order of their first allocation, and each buffer's place in that order (-1 if never allocated)."""
    living = buffer[kind == EventType.ALLOCATE]
    order = living[np.sort(np.unique(living, return_index=True)[1])]
    place = np.full(count, -1)
    place[order] = np.arange(len(order))
    return order, place


def _told(kind: np.ndarray, place: np.ndarray) -> np.ndarray:
    """For an allocation 0; for any other event the number of buffers allocated since its own buffer, plus 1."""
    return np.where(kind == EventType.ALLOCATE, 0, np.cumsum(kind == EventType.ALLOCATE) - place)


def _own(kind: np.ndarray, owner: np.ndarray, place: np.ndarray, made: np.ndarray) -> np.ndarray:
    """The same as :func:`_told`, counting only the engine's own buffers."""
    return np.where(owner < 0, np.cumsum(made) - place, 0)


def _made(run: EventList, rows: np.ndarray, tables: Tables) -> list[int]:
    buffers, names = run.buffers, [tables.names(name) for name in run.names]
    sizes, constants = run.sizes.coefficients, run.sizes.coefficients[:, 0].tolist()
    if sizes[buffers.size[rows], 1:].any():
        raise InputError("explore: this engine's buffers depend on the shape, which the page does not have")
    return [tables.made((constants[size], stream, factor, names[module], names[operator])) for
            size, stream, factor, module, operator in zip(*(getattr(buffers, name)[rows].tolist() for name in
                                                            ("size", "stream", "factor", "module", "operator")))]


def _check(run: EventList, micro: MicroStep, is_traced: np.ndarray, of: np.ndarray, begun: np.ndarray) -> None:
    """Checks that a run has all traced events, in order and in complete micro-steps.

    Persistent buffers are allocated in the first micro-step only.
    """
    events, stays = micro.events, np.isin(micro.events.buffer, micro.persistent)
    first = np.stack([events.kind, events.buffer, events.moment])
    count = int(of.max(initial=-1)) + 1
    expected = np.concatenate([first, *[first[:, ~stays]] * (count - 1)], axis=1)
    actual = np.stack([run.kind[is_traced], begun[is_traced], run.moment[is_traced]])
    if count == 0 or not np.array_equal(expected, actual):
        raise InputError("explore: this engine's run is not laid out as traced micro-steps, which the page expects")


def attributes(tables: Tables) -> Sequence[Sequence[int]]:
    """The columns of :attr:`Tables.made`."""
    return list(zip(*tables.made))


def sizes(micro: MicroStep) -> Mapping[str, object]:
    """The size table of the traced micro-step as JSON data: the terms, and the nonzero coefficients of each row."""
    from predictor.formula.formula import term_to_json

    table = micro.events.sizes
    return {"terms": [term_to_json(term) for term in table.terms],
            "rows": [[[int(term), int(row[term])] for term in np.flatnonzero(row)] for row in table.coefficients]}
