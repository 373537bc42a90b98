"""One micro-step under ZeRO-1 or ZeRO-2: buckets, reductions, and the partition's gradients.

ZeRO-2 reduces gradients in every micro-step. ZeRO-1 accumulates them and reduces in the last micro-step
(``partition_gradients`` false): with ``overlap_comm`` in the gradients' hooks, otherwise after backward, in the
optimizer's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from predictor.engine import zero2_reduction, zero_scalars
from predictor.engine.compose import Vocabulary, weave
from predictor.engine.setup import Setup
from predictor.engine.tape import MAIN_STREAM, Tape
from predictor.engine.zero2_offload import ToHost
from predictor.engine.zero2_releases import has
from predictor.engine.zero2_template import ByRank, HostCopies, Reduced, Template
from predictor.engine.zero_partition import Group
from predictor.events.events import MOMENTS, EventType, Factor, Moment
from predictor.events.micro_step import MicroStep

REDUCTION_STREAM = 1
DECIDING = ("aten::all", "aten::_is_all_true")
"""Operators whose result transformers reads on the host at once."""
COUNTING = ("aten::nonzero", "aten::masked_select", "aten::masked_scatter_backward")
"""Operators that count elements on the GPU, free the counter's workspace, and wait for the number before they allocate
a result of that size (aten/src/ATen/native/cuda/Nonzero.cu, ``nonzero_cuda_out_impl``)."""


@dataclass(frozen=True)
class MicroStepRole:
    """The role of a micro-step within its optimizer step.

    Attributes:
        reduces: whether it reduces gradients.
        adds: whether its gradients are added to those of the first micro-step.
        last: whether it completes the step's gradients. Before, offloaded gradients accumulate on the host.
        host_has_gradients: whether earlier micro-steps have copied gradients to the host.
        has_losses: whether earlier micro-steps have left losses to be logged.
    """

    reduces: bool = True
    adds: bool = False
    last: bool = True
    host_has_gradients: bool = False
    has_losses: bool = False


class Arrival(NamedTuple):
    """A gradient that is reduced.

    Attributes:
        position: the traced event before which its hook runs.
        parameter: index of its parameter.
        numel: number of its elements.
        gradient: its buffer; ``~n`` for buffer ``n`` of the first micro-step.
    """

    position: int
    parameter: int
    numel: int
    gradient: int


def templates(micro: MicroStep, setup: Setup, groups: Sequence[Group], vocabulary: Vocabulary) -> list[Template]:
    """The micro-steps of a step, with buckets and reductions inserted."""
    count, zero = setup.micro_steps, setup.deepspeed
    if zero.stage == 1:
        roles = [MicroStepRole(reduces=number == count - 1, adds=number > 0) for number in range(count)]
    elif zero.offload_optimizer:
        roles = [MicroStepRole(last=number == count - 1, host_has_gradients=number > 0) for number in range(count)]
    else:
        logs = not has(zero, "logs_no_losses")
        roles = [MicroStepRole(has_losses=logs and number > 0) for number in range(count)]
    by_role = {role: _Backward(micro, setup, groups, role).woven(vocabulary) for role in dict.fromkeys(roles)}
    return [by_role[role] for role in roles]


class _Backward:
    """Records the engine's events in one micro-step on a tape, with the events of all ranks."""

    def __init__(self, micro: MicroStep, setup: Setup, groups: Sequence[Group], role: MicroStepRole) -> None:
        zero = setup.deepspeed
        self.micro, self.setup, self.zero, self.role = micro, setup, zero, role
        self.accumulates = zero.stage == 1
        """Whether gradients accumulate over the micro-steps before they are reduced."""
        self.by_hooks = zero.overlap_comm or not self.accumulates
        self.end = backward_end(micro)
        self.arrivals = self._arrivals() if role.reduces else []
        self.flushes = zero2_reduction.flushes(tuple(arrival.parameter for arrival in self.arrivals),
                                               tuple(arrival.numel for arrival in self.arrivals), tuple(groups), zero)
        self.stream = REDUCTION_STREAM if zero.overlap_comm else MAIN_STREAM
        self.waits = zero.overlap_comm and not (zero.contiguous_gradients and zero.use_multi_rank_bucket_allreduce)
        self.tape = Tape(first=len(micro.events.buffers), moment=Moment.BACKWARD)
        self.partition = self.tape.declare(0, Factor.GRADIENTS, "zero::grads_in_partition", stream=self.stream)
        self.by_rank = ByRank()
        self.gradients = [arrival.gradient for arrival in self.arrivals]
        self.late: list[int] = []
        """Rows of ``arrivals`` whose gradients are freed later than their reduction."""
        self.kept: list[int] = []
        """Rows of ``arrivals`` with large gradients that their owners keep until the end of backward."""
        self.host = self._to_host(groups) if zero.offload_optimizer else None
        self.losses: list[int] = []
        self.logs_losses = not has(self.zero, "logs_no_losses")
        self.buckets: list[int] = []

    def _to_host(self, groups: Sequence[Group]) -> ToHost:
        return ToHost(self.tape, groups, self.stream, self.setup, last=self.role.last,
                      host_has_gradients=self.role.host_has_gradients)

    def _arrivals(self) -> list[Arrival]:
        tensors, adds = self.setup.facts.parameters, self.role.adds
        ready = [Arrival(position, parameter, tensors[parameter].numel, ~gradient if adds else gradient)
                 for position, parameter, gradient in self.micro.ready.tolist()]
        if self.by_hooks:
            return ready
        place = {parameter: number for number, parameter in enumerate(chain.from_iterable(self.setup.groups()))}
        return [arrival._replace(position=self.end)  # reduce_gradients
                for arrival in sorted(ready, key=lambda arrival: place[arrival.parameter])]

    def woven(self, vocabulary: Vocabulary) -> Template:
        """Records all events of the engine, and inserts them into the traced micro-step."""
        self.losses = self._losses()
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
        if self.logs_losses:  # the loss scaler's backward has returned
            self.tape.free(self.losses.pop())
        if self.flushes:
            self._reduce(number)
        self._finish()
        if self.by_hooks:  # the hooks still use the gradients
            self._add_up()
        if self.zero.overlap_comm:
            for position in synchronizations(self.micro):
                self.tape.position = position
                self.tape.mark(EventType.SYNCHRONIZE)
        return self._template(vocabulary)

    def _template(self, vocabulary: Vocabulary) -> Template:
        micro, tape = self.micro, self.tape
        columns, places = weave(micro, tape)
        gradients = [arrival.gradient for arrival in self.arrivals]
        reduced = Reduced([arrival.parameter for arrival in self.arrivals],
                          [gradient if gradient >= 0 else ~gradient for gradient in gradients],
                          [number for number, flush in enumerate(self.flushes) for _ in flush.rows])
        return Template(
            micro, vocabulary, columns, self.setup.micro_steps, passing=~np.isin(columns[1], micro.persistent),
            buffers=vocabulary.buffers(tape.buffers),
            buffer_bytes=np.array(tape.buffers.sizes, dtype=np.int64),
            reduced=reduced if self.role.reduces else None, accumulates=self.accumulates,
            itemsize=self.setup.facts.itemsize,
            by_rank=self.by_rank.woven(places),
            host=HostCopies(self.host.events(places), self.host.norms) if self.host else None)

    # before and after the hooks ---------------------------------------------------------------

    def _losses(self) -> list[int]:
        """Allocates the losses from which backward starts; those to be logged live through the forward, too."""
        if not self.logs_losses:
            return zero_scalars.losses(self.tape, self.micro)
        tape, later, count = self.tape, self.role.has_losses, self.setup.micro_steps
        tape.moment, tape.position = Moment.FORWARD, 0 if later else self.micro.backward_begin
        return [zero_scalars.logged_loss(tape, self.micro, count), *zero_scalars.losses_before_0_18_3(
            tape, self.micro, count, mean=later and not has(self.zero, "drops_mean_loss"))]

    def _make_buckets(self) -> None:
        """Allocates the buckets: in the first micro-step where gradients accumulate, otherwise in each micro-step.

        Releases that allocate where backward begins replace accumulating buckets in each micro-step.
        """
        zero, tape, hooks = self.zero, self.tape, self.micro.ready.tolist()
        if not (zero.contiguous_gradients and hooks):
            return
        size = self.setup.facts.itemsize * zero.reduce_bucket_size
        buckets = [tape.declare(size, Factor.COMMUNICATION, "zero::ipg_bucket") for _ in range(1 + zero.overlap_comm)]
        at_hook = has(zero, "buckets_at_first_hook")
        tape.position = hooks[0][0] if at_hook else self.micro.backward_begin
        self.buckets = [~bucket for bucket in buckets] if self.role.adds else buckets
        if self.role.adds and at_hook:
            return
        for bucket in self.buckets if self.role.adds else ():
            tape.free(bucket)
        for bucket in self.buckets:
            tape.allocate_declared(bucket)

    def _add_up(self) -> None:
        """Adds gradients to those of the first micro-step, and frees them. Their hooks run before that."""
        for position, _, gradient in self.micro.ready.tolist() if self.role.adds else ():
            self.tape.position = position
            self.tape.free(gradient)

    def _finish(self) -> None:
        """``independent_gradient_partition_epilogue``."""
        if self.zero.overlap_comm and self.role.reduces:
            self.tape.mark(EventType.SYNCHRONIZE)
        if not self.accumulates:
            self._release_late()
        for bucket in self.buckets if self.role.reduces else ():
            self.tape.free(bucket)
        for row in sorted(self.late, key=lambda row: self.arrivals[row].parameter):  # _clear_param_grad_only
            self._release(row)
        for row in self.kept:
            self._move(row)
        for loss in self.losses:
            self.tape.free(loss)

    # one gradient -----------------------------------------------------------------------------

    def _take(self, row: int) -> None:
        """Copies a gradient into the bucket if it fits; otherwise clones it if it goes to the host."""
        _, _, numel, gradient = self.arrivals[row]
        if self.zero.contiguous_gradients and numel <= self.zero.reduce_bucket_size:
            self.tape.free(gradient)
        elif self.host:
            self.gradients[row] = self.tape.allocate(self.setup.facts.itemsize * numel, Factor.GRADIENTS, "zero::clone")
            self.tape.free(gradient)

    def _release(self, row: int) -> None:
        """Frees a gradient on the ranks that own no part of it."""
        self.by_rank.release[row] = len(self.tape)
        self.tape.free(self.gradients[row])

    def _move(self, row: int) -> None:
        """Frees a gradient on the ranks that own a part of it."""
        self.by_rank.move[row] = len(self.tape)
        self.tape.free(self.gradients[row])

    def _release_late(self) -> None:
        while self.late:
            self._release(self.late.pop())

    # one reduction of gradients ---------------------------------------------------------------

    def _reduce(self, number: int) -> None:
        """``reduce_ipg_grads``: runs the collectives, then moves the gradients to their partition or frees them."""
        flush = self.flushes[number]
        for copies in flush.copies:
            self._communicate(copies)
        if self.zero.overlap_comm and has(self.zero, "record_stream"):
            self._record_streams(number)
        if self.host:
            for row in flush.rows:
                self.host.copy(self.arrivals[row].parameter, self.arrivals[row].numel)
        elif self.zero.contiguous_gradients:
            self.by_rank.partition.append(len(self.tape))
            self.tape.allocate_declared(self.partition)
        if flush.extra_large:
            self._drop_large(*flush.rows)
        elif not self.zero.contiguous_gradients:
            self._drop(flush.rows)

    def _communicate(self, copies: Sequence[int]) -> None:
        """One collective, with its copies (bytes)."""
        if self.waits:
            self.tape.mark(EventType.SYNCHRONIZE)
        if not self.accumulates:  # with overlap, these are the gradients of the previous reduction
            self._release_late()
        buffers = [self.tape.allocate(size, Factor.COMMUNICATION, "zero::allreduce_bucket", stream=self.stream)
                   for size in copies]
        for buffer in buffers:
            self.tape.free(buffer)

    def _record_streams(self, number: int) -> None:
        """Records that the reduction stream reads tensors of the main stream (``record_stream``)."""
        flush = self.flushes[number]
        if not self.zero.contiguous_gradients:
            for row in flush.rows:
                self.tape.record_stream(self.gradients[row], self.stream)
        elif self.zero.reduce_scatter or self.host:
            if () not in flush.copies and not self.host:  # with a copy, only owners of a part write to the bucket
                self.by_rank.use[number] = len(self.tape)
            bucket = self.buckets[number % len(self.buckets)]
            self.tape.record_stream(self.gradients[flush.rows[0]] if flush.extra_large else bucket, self.stream)

    def _drop_large(self, row: int) -> None:
        """Frees a gradient that was too large for the bucket."""
        if self.accumulates:  # ranks that own no part of it keep it to the end
            self.late.append(row)
            self._move(row)
        elif self.host and not self.role.last:  # ranks that own a part of it keep it to the end
            self.kept.append(row)
            self._release(row)
        else:
            self.tape.free(self.gradients[row])

    def _drop(self, rows: Sequence[int]) -> None:
        if self.zero.overlap_comm or self.accumulates:
            self.late.extend(rows)
        else:
            for row in rows:
                self._release(row)


def backward_end(micro: MicroStep) -> int:
    """The position in the events after autograd has returned; later events free buffers together with the loss.

    The loss's gradient, a tensor of ones, is the first allocation of backward, and is freed when autograd returns
    (torch/autograd/__init__.py, ``_make_grads``).
    """
    events = micro.events
    backward = events.moment == MOMENTS.index(Moment.BACKWARD)
    ones = backward & (events.kind < 0)
    ones &= events.buffer == events.buffer[np.argmax(backward & (events.kind > 0))]
    return int(np.argmax(ones)) + 1 if ones.any() else len(events)


def synchronizations(micro: MicroStep) -> list[int]:
    """Positions in the traced micro-step at which the host waits for the device.

    These are in each operator of :data:`COUNTING`, after the first workspace that is allocated and freed at once, and
    after each operator of :data:`DECIDING`, whose result decides what runs next.
    """
    events = micro.events

    def of(names: Sequence[str]) -> np.ndarray:
        return np.isin(events.buffers.operator[events.buffer], [i for i, n in enumerate(events.names) if n in names])

    inside = of(COUNTING)
    dropped = 1 + np.flatnonzero(inside[1:] & (events.kind[1:] < 0) & (events.buffer[1:] == events.buffer[:-1]))
    call = np.cumsum(inside & ~np.append(False, inside[:-1]))[dropped]
    counted = dropped[np.unique(call, return_index=True)[1]]
    decided = np.flatnonzero(of(DECIDING) & (events.kind > 0))
    return (np.union1d(counted, decided) + 1).tolist()
