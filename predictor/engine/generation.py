"""Composes an inference run: start-up, then calls of ``generate`` one after the other, each with all its new tokens.

A trace covers :data:`predictor.workload.generation.TRACED_TOKENS` new tokens of a call, or more where a sliding
window is reached. The two decode steps before the last one have equal events, and sizes that grow by the same bytes
from step to step. Further tokens repeat the second of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.engine.common import to_device
from predictor.engine.setup import Setup
from predictor.engine.tape import Tape
from predictor.events.events import FACTORS, Buffers, EventList, Factor
from predictor.events.micro_step import MicroStep
from predictor.events.sizes import Shape, SizeTable, Workspace


@dataclass(frozen=True, eq=False)
class Piece:
    """One call of ``generate``: its trace, its shape, and the number of tokens that it generates."""

    micro: MicroStep
    shape: Shape
    new_tokens: int


@dataclass(frozen=True, eq=False)
class Call:
    """All events of one call, with the bytes of its buffers, which are numbered from 0.

    Attributes:
        traced: number of buffers, from the first on, that are unchanged from the trace.
        cache: as in :class:`MicroStep`.
        growth_bytes: growth of the cache in the last decode step; None with fewer than two decode steps.
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
        """Bytes of the keys and values after the last forward."""
        return int(self.size_bytes[self.cache[:, 1]].sum())


def compose(pieces: Sequence[Piece], setup: Setup, gpu: Gpu) -> EventList:
    """The events of a run.

    Sizes of the traced buffers of the first call are functions of its shape. All other sizes are right at these shapes
    only.
    """
    start, traced = Tape(), pieces[0].micro.events
    first = len(traced.sizes)
    to_device(start, setup)
    names = {name: row for row, name in enumerate(traced.names)}
    sizes: dict[int, int] = {}  # bytes -> row, counted from the first trace's last row on

    def rows_of(byte_counts: Sequence[int] | np.ndarray) -> np.ndarray:
        distinct, row_of = np.unique(np.asarray(byte_counts, dtype=np.int64), return_inverse=True)
        rows = [sizes.setdefault(size, len(sizes)) for size in distinct.tolist()]
        return np.array(rows, dtype=np.int32)[row_of] + np.int32(first)

    def names_of(texts: Sequence[str]) -> np.ndarray:
        return np.array([names.setdefault(name, len(names)) for name in texts], dtype=np.int32)

    added = start.buffers
    buffers = [Buffers(rows_of(added.sizes), np.array(added.streams, dtype=np.int8),
                       np.array(added.factors, dtype=np.int8), names_of(added.modules), names_of(added.operators))]
    columns, steps, live = [start.columns()[:3]], [np.zeros(len(start), dtype=np.int16)], len(start.buffers)
    cache, workspaces = np.empty(0, np.int32), set()
    for number, piece in enumerate(pieces, 1):
        call = extended_call(piece, gpu)
        numbered = live + np.arange(len(call.buffers), dtype=np.int32)
        own = np.ones(len(call.buffers), dtype=bool)  # not the buffers that an earlier call allocated
        if call.cache[0, 0] >= 0:
            numbered[call.cache[:, 0]], own[call.cache[:, 0]] = cache, False
        cache = numbered[call.cache[:, 1]]
        for buffer in _workspaces(piece.micro):
            own[buffer] = call.size_bytes[buffer] not in workspaces
            workspaces.add(int(call.size_bytes[buffer]))
        kept = own[call.buffer] | (call.kind < 0)
        columns.append(np.stack([call.kind, numbered[call.buffer], call.moment])[:, kept])
        steps.append(np.full(kept.sum(), number, dtype=np.int16))
        symbolic = call.traced if number == 1 else 0
        row, name = rows_of(call.size_bytes[symbolic:]), names_of(piece.micro.events.names)
        buffers.append(Buffers(np.concatenate([call.buffers.size[:symbolic], row]), call.buffers.stream,
                               call.buffers.factor, name[call.buffers.module], name[call.buffers.operator]))
        live += len(call.buffers)
    kind, buffer, moment = np.concatenate(columns, axis=1)
    return EventList(kind.astype(np.int8), buffer.astype(np.int32), moment.astype(np.int8), np.concatenate(steps),
                     Buffers.concatenate(buffers), traced.sizes.with_constants(list(sizes)), tuple(names))


def _workspaces(micro: MicroStep) -> list[int]:
    """Persistent workspaces, which the first call allocates for all calls."""
    return [row for row in micro.persistent.tolist()
            if micro.events.buffers.factor[row] == FACTORS.index(Factor.TEMPORARIES)]


def extended_call(piece: Piece, gpu: Gpu) -> Call:
    """Extends the trace of a call to all its new tokens, by repeating a decode step.

    Raises:
        InputError: the traced decode steps are not alike.
    """
    events, cuts, cache = piece.micro.events, piece.micro.cuts, piece.micro.cache
    assert cuts is not None and cache is not None  # a traced call of generate has both
    sizes = events.sizes.at(piece.shape, gpu)[events.buffers.size]
    more = piece.new_tokens - 1 - len(cuts)
    allocated = np.cumsum(events.kind == 1)
    begins = allocated[cuts - 1].tolist()  # the first buffer of each decode step
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
        raise _unlike(piece, 1 + len(cuts))
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
    """Bytes of each buffer in each repetition of a decode step, ``int64[steps, buffers]``.

    The last row is the last decode step, which has fewer buffers because no other step follows.

    Args:
        bases: the first buffer of the older, the repeated and the last traced decode step.
        times: distance of each repetition from the traced step, in steps.

    Raises:
        InputError: the traced decode steps do not grow by the same bytes.
    """
    first, second, third = (sizes[base:base + bases[2] - bases[1]] for base in bases)
    growth = second - first
    grown = second + times[:, None] * growth
    table, row_of = piece.micro.events.sizes, piece.micro.events.buffers.size
    uneven = third - second[:len(third)] != growth[:len(third)]
    for index in range(len(second)):
        earlier, later = (_workspace(table, row_of[base + index]) for base in bases[:2])
        if later is not None:
            assert earlier is not None  # the steps run the same operators
            dimensions = [(p(piece.shape), q(piece.shape)) for p, q in zip(earlier.dimensions, later.dimensions)]
            grown[:, index] = later.of(gpu, *(new if new == old else new + times * (new - old)
                                                  for old, new in dimensions))
            uneven[index:index + 1] = False
    if uneven.any():
        assert piece.micro.cuts is not None  # longer() has checked it
        raise _unlike(piece, 1 + len(piece.micro.cuts))
    return grown


def _unlike(piece: Piece, most: int) -> InputError:
    return InputError(f"max_new_tokens {piece.new_tokens}: the decode steps of this model are not alike on this GPU, "
                      f"so only up to {most} tokens are predicted: give fewer")


def _workspace(table: SizeTable, row: int) -> Workspace | None:
    """The workspace of a size row; None if the row is not a single workspace."""
    columns = np.flatnonzero(table.coefficients[row])
    term = table.terms[columns[0]] if len(columns) == 1 else None
    return term if isinstance(term, Workspace) else None
