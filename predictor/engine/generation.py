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
from predictor.events.events import FACTORS, Buffers, EventList, Factor, rows_at
from predictor.events.micro_step import MicroStep
from predictor.events.sizes import Shape, SizeTable, Workspace

MOST_EVENTS = 11_500_000
"""Events of a run that are simulated. A model of 8 B parameters has some 3,000 in a decode step, so it may generate
some 3,800 tokens. Such a run takes less than half a GB, and those take longest, three seconds, that do not fit: where
there is no limit, the cache of many sequences leaves thousands of free segments behind."""


@dataclass(frozen=True)
class Piece:
    """One call of ``generate``: its trace, its shape, and the number of tokens that it generates."""

    micro: MicroStep
    shape: Shape
    new_tokens: int


@dataclass(frozen=True, eq=False)
class Call:
    """All events of one call, with its buffers, which are numbered from 0.

    Attributes:
        bytes: ``int64[sizes]``, the sizes that buffers have; ``buffers.size`` are indices into it.
        traced: number of buffers, from the first on, that are unchanged from the trace.
        cache: as in :class:`MicroStep`.
    """

    kind: np.ndarray
    buffer: np.ndarray
    moment: np.ndarray
    buffers: Buffers
    bytes: np.ndarray
    traced: int
    cache: np.ndarray

    @property
    def size_bytes(self) -> np.ndarray:
        """``int64[buffers]``: bytes of every buffer."""
        return self.bytes[self.buffers.size]


def compose(pieces: Sequence[Piece], setup: Setup, gpu: Gpu) -> EventList:
    """The events of a run.

    Sizes of the traced buffers of the first call are functions of its shape. All other sizes are right at these shapes
    only.

    Raises:
        InputError: as :func:`check_length` and :func:`extended_call`.
    """
    check_length(pieces)
    start, traced = Tape(), pieces[0].micro.events
    first = len(traced.sizes)
    to_device(start, setup)
    names = {name: row for row, name in enumerate(traced.names)}
    sizes: dict[int, int] = {}  # bytes -> row, counted from the first trace's last row on

    def rows_of(byte_counts: Sequence[int]) -> np.ndarray:
        return np.array([first + sizes.setdefault(size, len(sizes)) for size in byte_counts], dtype=np.int32)

    def names_of(texts: Sequence[str]) -> np.ndarray:
        return np.array([names.setdefault(name, len(names)) for name in texts], dtype=np.int32)

    added = start.buffers
    buffers = [Buffers(rows_of(added.sizes), np.array(added.streams, dtype=np.int8),
                       np.array(added.factors, dtype=np.int8), names_of(added.modules), names_of(added.operators))]
    kinds, numbers, moments = ([column] for column in start.columns()[:3])
    steps, live, cache, workspaces = [np.zeros(len(start), dtype=np.int16)], len(start.buffers), np.empty(0), set()
    for number, piece in enumerate(pieces, 1):
        call = extended_call(piece, gpu)
        numbered = np.arange(live, live + len(call.buffers), dtype=np.int32)
        own = np.ones(len(call.buffers), dtype=bool)  # not the buffers that an earlier call allocated
        if call.cache[0, 0] >= 0:
            numbered[call.cache[:, 0]], own[call.cache[:, 0]] = cache, False
        cache = numbered[call.cache[:, 1]]
        for buffer in _workspaces(piece.micro):
            workspace = int(call.bytes[call.buffers.size[buffer]])
            own[buffer] = workspace not in workspaces
            workspaces.add(workspace)
        kept = rows_at(own, call.buffer) | (call.kind < 0)
        for columns, column in ((kinds, call.kind), (numbers, rows_at(numbered, call.buffer)), (moments, call.moment)):
            columns.append(column if kept.all() else column[kept])
        steps.append(np.full(len(kinds[-1]), number, dtype=np.int16))
        symbolic = call.traced if number == 1 else 0
        row, name = rows_of(call.bytes.tolist()), names_of(piece.micro.events.names)
        size = rows_at(row, call.buffers.size)
        size[:symbolic] = traced.buffers.size[:symbolic]
        buffers.append(Buffers(size, call.buffers.stream, call.buffers.factor, rows_at(name, call.buffers.module),
                               rows_at(name, call.buffers.operator)))
        live += len(call.buffers)
    del call, numbered, own, kept, size  # long replies take much memory
    return EventList(_joined(kinds, np.int8), _joined(numbers, np.int32), _joined(moments, np.int8),
                     _joined(steps, np.int16), Buffers.concatenate(buffers), traced.sizes.with_constants(list(sizes)),
                     tuple(names))


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    """All parts, one after the other. The list is empty then, which frees them."""
    whole: np.ndarray = np.concatenate(parts, dtype=dtype, casting="unsafe")
    parts.clear()
    return whole


def check_length(pieces: Sequence[Piece]) -> None:
    """Checks that a run has at most :data:`MOST_EVENTS` events.

    Raises:
        InputError: its replies are too long together.
    """
    steps = [_decode_step(piece.micro) for piece in pieces]
    events = sum(len(piece.micro.events) + _more(piece) * (step.stop - step.start)
                 for piece, step in zip(pieces, steps))
    if events > MOST_EVENTS:
        tokens = sum(piece.new_tokens for piece in pieces)
        raise InputError(f"{tokens:,} new tokens of this model take {events:,} allocations and frees, and at most "
                         f"{MOST_EVENTS:,} are simulated: give at most about {tokens * MOST_EVENTS // events:,} new "
                         "tokens")


def cache_bytes(piece: Piece, gpu: Gpu) -> tuple[int, int | None]:
    """Bytes of the keys and values after a call's last forward, and their growth in its last decode step.

    The growth is None with fewer than two traced decode steps. Further tokens repeat it.
    """
    events, cache, begins = piece.micro.events, piece.micro.cache, _begins(piece.micro)
    assert cache is not None  # a traced call of generate has one
    sizes, held = events.sizes.at(piece.shape, gpu)[events.buffers.size], cache[:, 1]
    if len(begins) < 2:
        return int(sizes[held].sum()), None
    before = np.where(held >= begins[-1], held - begins[-1] + begins[-2], held)
    growth = int((sizes[held] - sizes[before]).sum())
    return int(sizes[held].sum()) + _more(piece) * growth, growth


def _begins(micro: MicroStep) -> list[int]:
    """The first buffer of each traced decode step."""
    assert micro.cuts is not None  # a traced call of generate has them
    begins: list[int] = np.cumsum(micro.events.kind == 1)[micro.cuts - 1].tolist()
    return begins


def _more(piece: Piece) -> int:
    """Decode steps of a call beyond the traced ones."""
    assert piece.micro.cuts is not None  # a traced call of generate has them
    return max(0, piece.new_tokens - 1 - len(piece.micro.cuts))


def _decode_step(micro: MicroStep) -> slice:
    """The events of the decode step that further tokens repeat: the one before the last, if there are two."""
    assert micro.cuts is not None  # a traced call of generate has them
    return slice(*micro.cuts[-2:].tolist()) if len(micro.cuts) > 1 else slice(0, 0)


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
    row_bytes = events.sizes.at(piece.shape, gpu)
    sizes = row_bytes[events.buffers.size]
    more = _more(piece)
    begins = _begins(piece.micro)
    if not more:
        return Call(events.kind, events.buffer, events.moment, events.buffers, row_bytes, len(sizes), cache)
    before, repeated, last = cuts[-3:].tolist()
    older, newer, newest = begins[-3:]
    each, step = newest - newer, slice(repeated, last)
    relative = events.buffer[step] - newer
    if newer - older != each or not (
            np.array_equal(events.kind[before:repeated], events.kind[step])
            and np.array_equal(events.buffer[before:repeated] - older, relative)):
        raise _unlike(piece, 1 + len(cuts))
    times = np.arange(1, more + 1, dtype=np.int32)
    grown, kind_of = _grown(piece, gpu, sizes, (older, newer, newest), np.append(times, more + 1))
    distinct, row_of = np.unique(grown, return_inverse=True)
    of_buffer = row_of.reshape(grown.shape).astype(np.int32)[:, kind_of] + np.int32(len(row_bytes))
    ending = sizes[newest:newest + each]  # of the last decode step; what follows it keeps its size

    def later(buffers: np.ndarray) -> np.ndarray:
        return np.where(buffers >= older, buffers + more * each, buffers)

    def repeated_in(column: np.ndarray) -> np.ndarray:
        return np.concatenate([column[:newest], np.tile(column[newer:newest], more), column[newest:]])

    size = np.concatenate([events.buffers.size[:newest], of_buffer.ravel()[:more * each + len(ending)],
                           events.buffers.size[newest + each:]])
    return Call(
        kind=np.concatenate([events.kind[:last], np.tile(events.kind[step], more), events.kind[last:]]),
        buffer=np.concatenate([events.buffer[:last], (newer + relative + each * times[:, None]).ravel(),
                               later(events.buffer[last:])]),
        moment=np.concatenate([events.moment[:last], np.tile(events.moment[step], more), events.moment[last:]]),
        buffers=Buffers(size, *(repeated_in(getattr(events.buffers, name))
                                for name in ("stream", "factor", "module", "operator"))),
        bytes=np.concatenate([row_bytes, distinct]), traced=newest, cache=later(cache))


def _grown(piece: Piece, gpu: Gpu, sizes: np.ndarray, bases: tuple[int, int, int],
           times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of each buffer in each repetition of a decode step.

    The last row is the last decode step, which has fewer buffers because no other step follows.

    Args:
        bases: the first buffer of the older, the repeated and the last traced decode step.
        times: distance of each repetition from the traced step, in steps.

    Returns:
        ``int64[steps, kinds]``, where buffers of one kind always have equal sizes, and the kind of each buffer.

    Raises:
        InputError: the traced decode steps do not grow by the same bytes.
    """
    first, second, third = (sizes[base:base + bases[2] - bases[1]] for base in bases)
    growth = second - first
    table, row_of = piece.micro.events.sizes, piece.micro.events.buffers.size
    uneven = third - second[:len(third)] != growth[:len(third)]
    kinds: dict[object, int] = {}
    columns: list[np.ndarray] = []
    kind_of = np.empty(len(second), dtype=np.int64)
    for index, (size, more) in enumerate(zip(second.tolist(), growth.tolist())):
        earlier, later = (_workspace(table, row_of[base + index]) for base in bases[:2])
        key = (size, more) if later is None else (earlier, later)
        kind_of[index] = kinds.setdefault(key, len(columns))
        if len(kinds) > len(columns):
            columns.append(np.broadcast_to(size + times.astype(np.int64) * more if later is None else
                                           _grown_workspace(piece, gpu, earlier, later, times), times.shape))
        if later is not None:
            uneven[index:index + 1] = False
    if uneven.any():
        assert piece.micro.cuts is not None  # a traced call of generate has them
        raise _unlike(piece, 1 + len(piece.micro.cuts))
    return np.stack(columns, axis=1), kind_of


def _grown_workspace(piece: Piece, gpu: Gpu, earlier: Workspace | None, later: Workspace,
                     times: np.ndarray) -> np.ndarray | int:
    """Bytes of a workspace in each repetition, whose dimensions grow by the same number in each."""
    assert earlier is not None  # the steps run the same operators
    dimensions = [(p(piece.shape), q(piece.shape)) for p, q in zip(earlier.dimensions, later.dimensions)]
    return later.of(gpu, *(new if new == old else new + times.astype(np.int64) * (new - old)
                           for old, new in dimensions))


def _unlike(piece: Piece, most: int) -> InputError:
    return InputError(f"max_new_tokens {piece.new_tokens}: the decode steps of this model are not alike on this GPU, "
                      f"so only up to {most} tokens are predicted: give fewer")


def _workspace(table: SizeTable, row: int) -> Workspace | None:
    """The workspace of a size row; None if the row is not a single workspace."""
    columns = np.flatnonzero(table.coefficients[row])
    term = table.terms[columns[0]] if len(columns) == 1 else None
    return term if isinstance(term, Workspace) else None
