"""What ZeRO-1 and ZeRO-2 do in one micro-step: buckets, reductions, and the partition's gradients.

ZeRO-2 reduces in every micro-step. ZeRO-1 lets gradients add up and reduces in the last (``partition_gradients``
false): with ``overlap_comm`` in the hooks too, else after backward, in the optimizer's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from predictor.engine import zero2_reduction
from predictor.engine.compose import MAIN_STREAM, Tape, Vocabulary, weave
from predictor.engine.setup import Setup
from predictor.engine.zero2_offload import ToHost
from predictor.engine.zero2_template import ByRank, HostCopies, Reduced, Template
from predictor.engine.zero_partition import Group
from predictor.events.events import MOMENTS, Factor, Kind, Moment
from predictor.events.micro_step import MicroStep

REDUCTION_STREAM = 1
DECIDING = ("aten::all", "aten::_is_all_true")
"""Operators whose result transformers asks for at once."""
COUNTING = ("aten::nonzero", "aten::masked_select", "aten::masked_scatter_backward")
"""Operators that count elements on the GPU, drop the counter's workspace, and wait for the number before they allocate
what it sizes (aten/src/ATen/native/cuda/Nonzero.cu, ``nonzero_cuda_out_impl``)."""


@dataclass(frozen=True)
class Release:
    """What differs among releases of DeepSpeed: whether buckets are allocated at the first hook, not before forward,
    and whether streams are recorded."""

    buckets_at_first_hook: bool
    records_streams: bool


@dataclass(frozen=True)
class Turn:
    """Which of a step's micro-steps it is.

    Attributes:
        reduces: whether it reduces gradients.
        adds: whether its gradients are added into the first micro-step's.
        last: whether the step's gradients are complete with it; before, those on the host add up there.
        again: whether there are some on the host already.
    """

    reduces: bool = True
    adds: bool = False
    last: bool = True
    again: bool = False


class Arrival(NamedTuple):
    """A gradient that is reduced: before which traced event its hook runs, whose it is, its elements, its buffer."""

    position: int
    parameter: int
    numel: int
    gradient: int


def templates(micro: MicroStep, setup: Setup, groups: Sequence[Group], vocabulary: Vocabulary,
              release: Release) -> list[Template]:
    """Each micro-step of a step, with buckets and reductions woven in."""
    count = setup.micro_steps
    if setup.zero.stage == 1:
        turns = [Turn(reduces=number == count - 1, adds=number > 0) for number in range(count)]
    elif setup.zero.offload_optimizer:
        turns = [Turn(last=number == count - 1, again=number > 0) for number in range(count)]
    else:
        turns = [Turn()] * count
    made = {turn: _Backward(micro, setup, groups, release, turn).woven(vocabulary) for turn in dict.fromkeys(turns)}
    return [made[turn] for turn in turns]


class _Backward:
    """Writes what the engine does in one micro-step to a tape, with the events of all ranks."""

    def __init__(self, micro: MicroStep, setup: Setup, groups: Sequence[Group], release: Release, turn: Turn) -> None:
        zero = setup.zero
        self.micro, self.setup, self.zero, self.release, self.turn = micro, setup, zero, release, turn
        self.gathers = zero.stage == 1
        """Whether gradients add up over the micro-steps before they are reduced."""
        self.by_hooks = zero.overlap_comm or not self.gathers
        self.end = backward_end(micro) if self.gathers or zero.offload_optimizer else len(micro.events)
        self.arrivals = self._arrivals() if turn.reduces else []
        self.flushes = zero2_reduction.flushes([one.parameter for one in self.arrivals],
                                               [one.numel for one in self.arrivals], groups, zero)
        self.stream = REDUCTION_STREAM if zero.overlap_comm else MAIN_STREAM
        self.waits = zero.overlap_comm and not (zero.contiguous_gradients and zero.use_multi_rank_bucket_allreduce)
        self.tape = Tape(first=len(micro.events.buffers), moment=Moment.BACKWARD)
        self.partition = self.tape.declare(0, Factor.GRADIENTS, "zero::grads_in_partition", stream=self.stream)
        self.by_rank = ByRank()
        self.gradients = [one.gradient for one in self.arrivals]
        self.late: list[int] = []
        """Rows of gradients that go later than their reduction."""
        self.kept: list[int] = []
        """Rows of large gradients that their owners keep until the end of backward."""
        self.host = ToHost(self.tape, groups, self.stream, last=turn.last, again=turn.again) \
            if zero.offload_optimizer else None
        self.buckets: list[int] = []

    def _arrivals(self) -> list[Arrival]:
        tensors, adds = self.setup.facts.parameters, self.turn.adds
        ready = [Arrival(position, parameter, tensors[parameter].numel, ~gradient if adds else gradient)
                 for position, parameter, gradient in self.micro.ready.tolist()]
        if self.by_hooks:
            return ready
        place = {parameter: number for number, parameter in enumerate(chain.from_iterable(self.setup.groups()))}
        return [one._replace(position=self.end)  # reduce_gradients
                for one in sorted(ready, key=lambda one: place[one.parameter])]

    def woven(self, vocabulary: Vocabulary) -> Template:
        """All of it among the traced events."""
        self._make_buckets()
        if not self.by_hooks:
            self._add_up()
        number = 0
        for row, arrival in enumerate(self.arrivals):
            self.tape.position = arrival.position
            if self.flushes[number].before == row:
                self._reduce(number)
                number += 1
            self._take(row)
        self.tape.position = self.end
        if self.flushes:
            self._reduce(number)
        self._finish()
        if self.by_hooks:  # which still see it
            self._add_up()
        if self.zero.overlap_comm:
            for position in synchronizations(self.micro):
                self.tape.position = position
                self.tape.mark(Kind.SYNCHRONIZE)
        return self._template(vocabulary)

    def _template(self, vocabulary: Vocabulary) -> Template:
        micro, tape = self.micro, self.tape
        columns, places = weave(micro, tape)
        reduced = Reduced([one.parameter for one in self.arrivals],
                          [one.gradient if one.gradient >= 0 else ~one.gradient for one in self.arrivals],
                          [number for number, flush in enumerate(self.flushes) for _ in flush.rows])
        return Template(
            micro, vocabulary, columns, self.setup.micro_steps, passing=~np.isin(columns[1], micro.persistent),
            buffers=vocabulary.buffers(tape.attributes),
            buffer_bytes=np.array([one.size_bytes for one in tape.attributes], dtype=np.int64),
            reduced=reduced if self.turn.reduces else None, gathers=self.gathers, itemsize=self.setup.facts.itemsize,
            by_rank=self.by_rank.woven(places),
            host=HostCopies(self.host.events(places), self.host.norms) if self.host else None)

    # before and after the hooks ---------------------------------------------------------------

    def _make_buckets(self) -> None:
        """Once in a step where gradients add up over its micro-steps, else in each."""
        zero, tape, hooks = self.zero, self.tape, self.micro.ready.tolist()
        if not (zero.contiguous_gradients and hooks):
            return
        size = self.setup.facts.itemsize * zero.reduce_bucket_size
        made = [tape.declare(size, Factor.COMMUNICATION, "zero::ipg_bucket") for _ in range(1 + zero.overlap_comm)]
        if self.turn.adds:
            self.buckets = [~bucket for bucket in made]
            return
        self.buckets = made
        tape.position = hooks[0][0] if self.release.buckets_at_first_hook else 0
        for bucket in made:
            tape.again(bucket)

    def _add_up(self) -> None:
        """Gradients are added into the first micro-step's; the hook of each, with what it reduces, still sees it."""
        for position, _, gradient in self.micro.ready.tolist() if self.turn.adds else ():
            self.tape.position = position
            self.tape.free(gradient)

    def _finish(self) -> None:
        """``independent_gradient_partition_epilogue``."""
        if self.zero.overlap_comm and self.turn.reduces:
            self.tape.mark(Kind.SYNCHRONIZE)
        if not self.gathers:
            self._release_late()
        for bucket in self.buckets if self.turn.reduces else ():
            self.tape.free(bucket)
        for row in sorted(self.late, key=lambda row: self.arrivals[row].parameter):  # _clear_param_grad_only
            self._release(row)
        for row in self.kept:
            self._move(row)

    # one gradient -----------------------------------------------------------------------------

    def _take(self, row: int) -> None:
        """A gradient goes into the bucket, if it fits; the host's are cloned where there is none."""
        _, _, numel, gradient = self.arrivals[row]
        if self.zero.contiguous_gradients and numel <= self.zero.reduce_bucket_size:
            self.tape.free(gradient)
        elif self.host:
            self.gradients[row] = self.tape.allocate(self.setup.facts.itemsize * numel, Factor.GRADIENTS, "zero::clone")
            self.tape.free(gradient)

    def _release(self, row: int) -> None:
        """Who owns no part of a gradient drops it."""
        self.by_rank.release[row] = len(self.tape.rows)
        self.tape.free(self.gradients[row])

    def _move(self, row: int) -> None:
        """Who owns a part of a gradient drops it."""
        self.by_rank.move[row] = len(self.tape.rows)
        self.tape.free(self.gradients[row])

    def _release_late(self) -> None:
        while self.late:
            self._release(self.late.pop())

    # one reduction ----------------------------------------------------------------------------

    def _reduce(self, number: int) -> None:
        """``reduce_ipg_grads``: the collective's copies, then gradients move or go."""
        flush = self.flushes[number]
        for copies in flush.copies:
            self._communicate(copies)
        if self.zero.overlap_comm and self.release.records_streams:
            self._record_streams(number)
        if self.host:
            for row in flush.rows:
                self.host.copy(self.arrivals[row].parameter)
        elif self.zero.contiguous_gradients:
            self.by_rank.partition.append(len(self.tape.rows))
            self.tape.again(self.partition)
        if flush.extra_large:
            self._drop_large(*flush.rows)
        elif not self.zero.contiguous_gradients:
            self._drop(flush.rows)

    def _communicate(self, copies: Sequence[int]) -> None:
        """One collective."""
        if self.waits:
            self.tape.mark(Kind.SYNCHRONIZE)
        if not self.gathers:  # with overlap, of the reduction before this one
            self._release_late()
        buffers = [self.tape.allocate(size, Factor.COMMUNICATION, "zero::allreduce_bucket", stream=self.stream)
                   for size in copies]
        for buffer in buffers:
            self.tape.free(buffer)

    def _record_streams(self, number: int) -> None:
        """Tell the allocator that the reduction stream reads what the main stream made (``record_stream``)."""
        flush = self.flushes[number]
        if not self.zero.contiguous_gradients:
            for row in flush.rows:
                self.tape.record_stream(self.gradients[row], self.stream)
        elif self.zero.reduce_scatter or self.host:
            if () not in flush.copies and not self.host:  # copied: then only the owners of a part write it back
                self.by_rank.use[number] = len(self.tape.rows)
            bucket = self.buckets[number % len(self.buckets)]
            self.tape.record_stream(self.gradients[flush.rows[0]] if flush.extra_large else bucket, self.stream)

    def _drop_large(self, row: int) -> None:
        """A gradient that was never in the bucket."""
        if self.gathers:  # who owns no part of it keeps it to the end
            self.late.append(row)
            self._move(row)
        elif self.host and not self.turn.last:  # and here who does
            self.kept.append(row)
            self._release(row)
        else:
            self.tape.free(self.gradients[row])

    def _drop(self, rows: Sequence[int]) -> None:
        if self.zero.overlap_comm or self.gathers:
            self.late.extend(rows)
        else:
            for row in rows:
                self._release(row)


def backward_end(micro: MicroStep) -> int:
    """Position at which autograd has done all: what follows goes with the loss. The gradient of the loss, ones, is the
    first that backward allocates, and goes when autograd returns (torch/autograd/__init__.py, ``_make_grads``)."""
    events = micro.events
    backward = events.moment == MOMENTS.index(Moment.BACKWARD)
    ones = backward & (events.kind < 0)
    ones &= events.buffer == events.buffer[np.argmax(backward & (events.kind > 0))]
    return int(np.argmax(ones)) if ones.any() else len(events)


def synchronizations(micro: MicroStep) -> list[int]:
    """Positions in the traced micro-step at which the host waits for the device: in each operator that counts,
    after the first workspace that is made and dropped at once; after each whose result decides what comes."""
    events = micro.events

    def of(names: Sequence[str]) -> np.ndarray:
        return np.isin(events.buffers.operator[events.buffer], [i for i, n in enumerate(events.names) if n in names])

    inside = of(COUNTING)
    dropped = 1 + np.flatnonzero(inside[1:] & (events.kind[1:] < 0) & (events.buffer[1:] == events.buffer[:-1]))
    call = np.cumsum(inside & ~np.append(False, inside[:-1]))[dropped]
    counted = dropped[np.unique(call, return_index=True)[1]]
    asked = np.flatnonzero(of(DECIDING) & (events.kind > 0))
    return (np.union1d(counted, asked) + 1).tolist()
