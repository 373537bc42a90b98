"""A run of inference: start-up, then calls of ``generate`` one after the other, each as long as was asked for.

Of a call, :data:`predictor.turns.TRACED_TOKENS` new tokens are traced at most. The two decode steps before the last one
are alike but for sizes that grow by the same bytes in each; more tokens repeat the second of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.engine.compose import Tape, Vocabulary
from predictor.engine.setup import Setup
from predictor.engine.shared import to_device
from predictor.events import FACTORS, Buffers, EventList, Factor
from predictor.formula import MicroStep
from predictor.gpus import Gpu
from predictor.regimes import NotOneRegime
from predictor.sizes import Shape, SizeTable, Workspace
from predictor.turns import TRACED_TOKENS


@dataclass(frozen=True, eq=False)
class Piece:
    """One call: its trace, its shape, and how many tokens it generates."""

    micro: MicroStep
    shape: Shape
    new_tokens: int


@dataclass(frozen=True, eq=False)
class Call:
    """All events of one call, buffers numbered from 0 on, with bytes; ``kept`` as in :class:`MicroStep`."""

    kind: np.ndarray
    buffer: np.ndarray
    moment: np.ndarray
    buffers: Buffers
    size_bytes: np.ndarray
    kept: np.ndarray


def compose(pieces: Sequence[Piece], setup: Setup, gpu: Gpu) -> EventList:
    """The events of a run; sizes are right at these shapes only."""
    start = Tape()
    to_device(start, setup)
    vocabulary = Vocabulary(pieces[0].micro)
    columns, parts, sizes = [start.columns()[:3]], [vocabulary.buffers(start.attributes)], []
    sizes.append(np.array([size for size, *_ in start.attributes], dtype=np.int64))
    steps, names = [np.zeros(len(start.rows), dtype=np.int16)], list(vocabulary.names)
    cache, workspaces, first = np.empty(0, np.int32), set(), len(start.attributes)
    for number, piece in enumerate(pieces, 1):
        call = longer(piece, gpu)
        numbered = first + np.arange(len(call.buffers), dtype=np.int32)
        own = np.ones(len(call.buffers), dtype=bool)  # what others made is not made again
        if len(call.kept) and call.kept[0, 0] >= 0:
            numbered[call.kept[:, 0]], own[call.kept[:, 0]] = cache, False
        for buffer in _workspaces(piece.micro):
            own[buffer] = call.size_bytes[buffer] not in workspaces
            workspaces.add(int(call.size_bytes[buffer]))
        there = own[call.buffer] | (call.kind < 0)
        columns.append(np.stack([call.kind, numbered[call.buffer], call.moment])[:, there])
        steps.append(np.full(there.sum(), number, dtype=np.int16))
        cache = numbered[call.kept[:, 1]] if len(call.kept) else cache
        known = {name: row for row, name in enumerate(names)}
        rows = np.array([known.setdefault(name, len(known)) for name in piece.micro.events.names], dtype=np.int32)
        names = list(known)
        parts.append(Buffers(call.buffers.size, call.buffers.stream, call.buffers.factor, rows[call.buffers.module],
                             rows[call.buffers.operator]))
        sizes.append(call.size_bytes)
        first += len(call.buffers)
    kind, buffer, moment = np.concatenate(columns, axis=1)
    different, size = np.unique(np.concatenate(sizes), return_inverse=True)
    buffers = Buffers.concatenate(parts)
    buffers = Buffers(size.astype(np.int32), buffers.stream, buffers.factor, buffers.module, buffers.operator)
    return EventList(kind.astype(np.int8), buffer.astype(np.int32), moment.astype(np.int8), np.concatenate(steps),
                     buffers, SizeTable.constants(different), tuple(names))


def _workspaces(micro: MicroStep) -> list[int]:
    """Buffers that the first call makes for all."""
    kept = set(micro.kept[:, 1].tolist())
    return [row for row in micro.persistent.tolist() if row not in kept
            and micro.events.buffers.factor[row] == FACTORS.index(Factor.TEMPORARIES)]


def longer(piece: Piece, gpu: Gpu) -> Call:
    """A call with as many tokens as were asked for."""
    events, cuts = piece.micro.events, piece.micro.cuts
    sizes = events.sizes.at(piece.shape, gpu)[events.buffers.size]
    more = piece.new_tokens - TRACED_TOKENS
    whole = Call(events.kind, events.buffer, events.moment, events.buffers, sizes, piece.micro.kept)
    if more <= 0:
        return whole
    before, repeated, last = cuts[-3:]
    made = np.cumsum(events.kind == 1)
    bases = [int(made[cut - 1]) for cut in (before, repeated, last)]
    step = slice(repeated, last)
    each, same = bases[2] - bases[1], events.buffer[step] - bases[1]
    if bases[1] - bases[0] != each or repeated - before != last - repeated or (
            same != events.buffer[before:repeated] - bases[0]).any() or (
            events.kind[before:repeated] != events.kind[step]).any():
        raise NotOneRegime("decode steps differ from each other")
    times = np.arange(1, more + 1)
    grown = _grown(sizes[bases[0]:bases[1]], sizes[bases[1]:bases[2]], sizes[bases[2]:], times)
    late = events.buffer >= bases[0]
    tail = np.where(late, events.buffer + more * each, events.buffer)[last:]
    rows = np.concatenate([np.arange(bases[2]), np.tile(np.arange(bases[1], bases[2]), more),
                           np.arange(bases[2], len(events.buffers))])
    found = np.concatenate([sizes[:bases[2]], grown.ravel()[:len(rows) - bases[2]], sizes[bases[2] + each:]])
    kept = np.where(piece.micro.kept >= bases[0], piece.micro.kept + more * each, piece.micro.kept)
    return Call(
        kind=np.concatenate([events.kind[:last], np.tile(events.kind[step], more), events.kind[last:]]),
        buffer=np.concatenate([events.buffer[:last], (bases[1] + same + each * times[:, None]).ravel(), tail]),
        moment=np.concatenate([events.moment[:last], np.tile(events.moment[step], more), events.moment[last:]]),
        buffers=Buffers(*(getattr(events.buffers, name)[rows] for name in Buffers.__dataclass_fields__)),
        size_bytes=found, kept=kept)


def _grown(older: np.ndarray, newer: np.ndarray, newest: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Bytes of each buffer of the repeated step, ``int64[steps + 1, buffers]``; the last row is of the last step, which
    does not prepare another."""
    growth = newer - older
    if (newest[:len(newer)] - newer[:len(newest)] != growth[:len(newest)]).any():
        raise NotOneRegime("sizes of decode steps do not grow evenly")
    return newer + np.append(times, times[-1] + 1)[:, None] * growth
