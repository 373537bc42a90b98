"""A run of inference: start-up, then calls of ``generate`` one after the other, each as long as was asked for.

Of a call, :data:`predictor.workload.conversation.TRACED_TOKENS` new tokens are traced, or more where a sliding window
is reached. The two decode steps before the last one are alike but for sizes that grow by the same bytes in
each; more tokens repeat the second of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.engine.common import to_device
from predictor.engine.compose import Tape
from predictor.engine.setup import Setup
from predictor.events.events import FACTORS, Buffers, EventList, Factor
from predictor.events.micro_step import MicroStep
from predictor.events.sizes import Shape, SizeTable, Workspace


@dataclass(frozen=True, eq=False)
class Piece:
    """One call: its trace, its shape, and how many tokens it generates."""

    micro: MicroStep
    shape: Shape
    new_tokens: int


@dataclass(frozen=True, eq=False)
class Call:
    """All events of one call, buffers numbered from 0 on, with bytes.

    Attributes:
        traced: how many buffers, the first ones, are as they were traced.
        cache: as in :class:`MicroStep`.
        growth_bytes: of the cache in the last decode step; None without two to compare.
    """

    kind: np.ndarray
    buffer: np.ndarray
    moment: np.ndarray
    buffers: Buffers
    size_bytes: np.ndarray
    traced: int
    cache: np.ndarray
    growth_bytes: int | None

    @property
    def cache_bytes(self) -> int:
        """Of keys and values after the last forward."""
        return int(self.size_bytes[self.cache[:, 1]].sum())


def compose(pieces: Sequence[Piece], setup: Setup, gpu: Gpu) -> EventList:
    """The events of a run. Sizes of what was traced of the first call are formulas of its shape; all others are right
    at these shapes only."""
    start, traced = Tape(), pieces[0].micro.events
    to_device(start, setup)
    names = {name: row for row, name in enumerate(traced.names)}
    sizes = {}  # bytes -> row after those of the first trace

    def rows_of(found: Sequence[int]) -> np.ndarray:
        return np.array([len(traced.sizes) + sizes.setdefault(size, len(sizes)) for size in found], dtype=np.int32)

    def names_of(found: Sequence[str]) -> np.ndarray:
        return np.array([names.setdefault(name, len(names)) for name in found], dtype=np.int32)

    size_bytes, streams, factors, modules, operators = zip(*start.attributes)
    buffers = [Buffers(rows_of(size_bytes), *(np.array(column, dtype=np.int8) for column in (streams, factors)),
                       names_of(modules), names_of(operators))]
    columns, steps, live = [start.columns()[:3]], [np.zeros(len(start.rows), dtype=np.int16)], len(start.attributes)
    cache, workspaces = np.empty(0, np.int32), set()
    for number, piece in enumerate(pieces, 1):
        call = longer(piece, gpu)
        numbered = live + np.arange(len(call.buffers), dtype=np.int32)
        own = np.ones(len(call.buffers), dtype=bool)  # what an earlier call made is not made again
        if call.cache[0, 0] >= 0:
            numbered[call.cache[:, 0]], own[call.cache[:, 0]] = cache, False
        cache = numbered[call.cache[:, 1]]
        for buffer in _workspaces(piece.micro):
            own[buffer] = call.size_bytes[buffer] not in workspaces
            workspaces.add(int(call.size_bytes[buffer]))
        said = own[call.buffer] | (call.kind < 0)
        columns.append(np.stack([call.kind, numbered[call.buffer], call.moment])[:, said])
        steps.append(np.full(said.sum(), number, dtype=np.int16))
        symbolic = call.traced if number == 1 else 0
        row, name = rows_of(call.size_bytes[symbolic:].tolist()), names_of(piece.micro.events.names)
        buffers.append(Buffers(np.concatenate([call.buffers.size[:symbolic], row]), call.buffers.stream,
                               call.buffers.factor, name[call.buffers.module], name[call.buffers.operator]))
        live += len(call.buffers)
    kind, buffer, moment = np.concatenate(columns, axis=1)
    return EventList(kind.astype(np.int8), buffer.astype(np.int32), moment.astype(np.int8), np.concatenate(steps),
                     Buffers.concatenate(buffers), traced.sizes.with_constants(list(sizes)), tuple(names))


def _workspaces(micro: MicroStep) -> list[int]:
    """Buffers that the first call makes for all."""
    return [row for row in micro.persistent.tolist()
            if micro.events.buffers.factor[row] == FACTORS.index(Factor.TEMPORARIES)]


def longer(piece: Piece, gpu: Gpu) -> Call:
    """A call with as many tokens as were asked for.

    Raises:
        InputError: the traced decode steps are not alike.
    """
    events, cuts, cache = piece.micro.events, piece.micro.cuts, piece.micro.cache
    sizes = events.sizes.at(piece.shape, gpu)[events.buffers.size]
    more = piece.new_tokens - 1 - len(cuts)
    made = np.cumsum(events.kind == 1)
    begins = made[cuts - 1].tolist()  # the first buffer of each decode step
    held, growth = cache[:, 1], None
    if len(begins) > 1:
        before = np.where(held >= begins[-1], held - begins[-1] + begins[-2], held)
        growth = int((sizes[held] - sizes[before]).sum())
    if more <= 0:
        return Call(events.kind, events.buffer, events.moment, events.buffers, sizes, len(sizes), cache, growth)
    before, repeated, last = cuts[-3:].tolist()
    older, newer, newest = begins[-3:]
    each, step = newest - newer, slice(repeated, last)
    relative = events.buffer[step] - newer
    if newer - older != each or not (
            np.array_equal(events.kind[before:repeated], events.kind[step])
            and np.array_equal(events.buffer[before:repeated] - older, relative)):
        raise _unlike(piece)
    times = np.arange(1, more + 1)
    grown = _grown(piece, gpu, sizes, (older, newer, newest), np.append(times, more + 1))
    rows = np.concatenate([np.arange(newest), np.tile(np.arange(newer, newest), more),
                           np.arange(newest, len(events.buffers))])

    def later(buffers: np.ndarray) -> np.ndarray:
        return np.where(buffers >= older, buffers + more * each, buffers)

    return Call(
        kind=np.concatenate([events.kind[:last], np.tile(events.kind[step], more), events.kind[last:]]),
        buffer=np.concatenate([events.buffer[:last], (newer + relative + each * times[:, None]).ravel(),
                               later(events.buffer[last:])]),
        moment=np.concatenate([events.moment[:last], np.tile(events.moment[step], more), events.moment[last:]]),
        buffers=Buffers(*(getattr(events.buffers, name)[rows] for name in Buffers.__dataclass_fields__)),
        size_bytes=np.concatenate([sizes[:newest], grown.ravel()[:len(rows) - newest], sizes[newest + each:]]),
        traced=newest, cache=later(cache), growth_bytes=growth)


def _grown(piece: Piece, gpu: Gpu, sizes: np.ndarray, bases: tuple[int, int, int], times: np.ndarray) -> np.ndarray:
    """Bytes of each buffer of the repeated step, ``int64[steps, buffers]``; the last row is of the last step, which
    does not prepare another."""
    first, second, third = (sizes[base:base + bases[2] - bases[1]] for base in bases)
    growth = second - first
    grown = second + times[:, None] * growth
    table, row_of = piece.micro.events.sizes, piece.micro.events.buffers.size
    uneven = third - second[:len(third)] != growth[:len(third)]
    for index in range(len(second)):
        earlier, later = (_workspace(table, row_of[base + index]) for base in bases[:2])
        if later:
            dimensions = [(p(piece.shape), q(piece.shape)) for p, q in zip(earlier.dimensions, later.dimensions)]
            grown[:, index] = later.of(gpu, *(new if new == old else new + times * (new - old)
                                                  for old, new in dimensions))
            uneven[index:index + 1] = False
    if uneven.any():
        raise _unlike(piece)
    return grown


def _unlike(piece: Piece) -> InputError:
    most = 1 + len(piece.micro.cuts)
    return InputError(f"max_new_tokens {piece.new_tokens}: the decode steps of this model are not alike on this GPU, "
                      f"which is predicted for up to {most} tokens")


def _workspace(table: SizeTable, row: int) -> Workspace | None:
    """The workspace that a size row is, if it is one."""
    columns = np.flatnonzero(table.coefficients[row])
    term = table.terms[columns[0]] if len(columns) == 1 else None
    return term if isinstance(term, Workspace) else None
