"""What ZeRO-1 and ZeRO-2 do in one micro-step: buckets, reductions, and the partition's gradients.

ZeRO-2 reduces in every micro-step. ZeRO-1 lets gradients add up and reduces in the last (``partition_gradients``
false): with ``overlap_comm`` in the hooks too, else after backward, in the optimizer's order.

Ranks differ only in which gradients they keep. So a micro-step is woven once with every event that some rank has, and
playing it for a rank leaves out those that are not its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import numpy as np

from predictor.engine import reduction
from predictor.engine.compose import MAIN_STREAM, Rise, Tape, Vocabulary, weave
from predictor.engine.partition import Group
from predictor.engine.setup import Setup
from predictor.engine.zero2_offload import ToHost
from predictor.events.events import MOMENTS, Buffers, Factor, Kind, Moment, sign
from predictor.events.micro_step import MicroStep

REDUCTION_STREAM = 1
DECIDING = ("aten::all", "aten::_is_all_true")
"""Operators whose result transformers asks for at once."""
COUNTING = ("aten::nonzero", "aten::masked_select", "aten::masked_scatter_backward")
"""Operators that count elements on the GPU, drop the counter's workspace, and wait for the number before they allocate
what it sizes (aten/src/ATen/native/cuda/Nonzero.cu, ``nonzero_cuda_out_impl``)."""


@dataclass(frozen=True, eq=False)
class Template:
    """A micro-step with the events of all ranks.

    Attributes:
        columns: ``int32[3, events]``; engine buffers follow the traced ones; ``~n`` is the first micro-step's ``n``.
        micro_steps: how many the step has.
        passing: events of buffers that do not stay for good.
        buffers: the engine's; the first is the partition buffer, without its size.
        buffer_bytes: their sizes.
        reduces: whether it reduces gradients.
        parameters: parameter of each row of ``ready``, in the order of the reductions; empty without.
        gradients: its buffer in the traced micro-step.
        flush_of: for each row of ``ready``, the reduction that it is part of.
        partition_events: for each reduction, where the partition buffer is allocated by a rank whose
            first gradient is in it; empty without contiguous gradients.
        release_events: for some rows of ``ready``, where ranks that do not own the gradient free it.
        move_events: for some rows, where ranks that own the gradient free it: it moved to the partition buffer.
        use_events: for some reductions, where ranks that own a part of it use its bucket on the
            reduction stream.
        gathers: whether the gradients are those of all micro-steps; buckets then are the first one's.
        host_events: for each rank, events of the copies to the host that it alone has; None where gradients stay.
        norms: for each rank, the buffers of its gradients' norms, if they went to the host.
        itemsize: bytes of a gradient's element.
    """

    micro: MicroStep
    vocabulary: Vocabulary
    columns: np.ndarray
    micro_steps: int
    passing: np.ndarray
    buffers: Buffers
    buffer_bytes: np.ndarray
    reduces: bool
    parameters: list[int]
    gradients: list[int]
    flush_of: list[int]
    partition_events: np.ndarray
    release_events: dict[int, int]
    move_events: dict[int, int]
    use_events: dict[int, int]
    gathers: bool
    itemsize: int
    host_events: dict[int, np.ndarray] | None = None
    norms: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @cached_property
    def _host_events_of_all(self) -> np.ndarray:
        return np.concatenate([*self.host_events.values(), np.empty(0, np.int64)])

    def change(self, traced_bytes: np.ndarray) -> np.ndarray:
        """Bytes that each event adds, given those of the traced buffers; the partition buffer counts nothing."""
        buffer = self.columns[1]
        return np.concatenate([traced_bytes, self.buffer_bytes])[np.where(buffer < 0, ~buffer, buffer)] * sign(
            self.columns[0])

    def play(self, index: int, first: int, rank: int, group_of: Mapping[int, int],
             numel_of: Mapping[int, int]) -> Part:
        """Micro-step ``index`` on a rank, its engine buffers numbered from ``first``.

        Args:
            group_of: for each parameter that the rank owns a part of, its optimizer group.
            numel_of: elements of every trainable parameter.
        """
        each = len(self.micro.events.buffers)
        keep, held, partition = self.passing.copy() if index else np.ones_like(self.passing), {}, None
        mine = [row for row, parameter in enumerate(self.parameters) if parameter in group_of]
        if self.host_events is not None:
            keep[self._host_events_of_all] = False
            keep[self.host_events.get(rank, [])] = True
            held = {first + norm - each: max(group_of.values()) for norm in self.norms.get(rank, ())}
        elif len(self.partition_events):
            keep[self.partition_events] = False
            if mine:
                event = int(self.partition_events[self.flush_of[mine[0]]])
                keep[event] = True
                partition = event, self.itemsize * sum(numel_of[parameter] for parameter in group_of)
                held[first] = max(group_of.values())  # one buffer for all groups
        elif self.parameters:
            origin = 0 if self.gathers else index * each
            held |= {self.gradients[row] + origin: group_of[self.parameters[row]] for row in mine}
        keep[[self.release_events[row] for row in mine if row in self.release_events]] = False
        keep[[self.move_events[row] for row in self.move_events.keys() - set(mine)]] = False
        foreign = self.use_events.keys() - {self.flush_of[row] for row in mine}
        keep[[self.use_events[flush] for flush in foreign]] = False
        tape = Tape(first=first + len(self.buffers), moment=Moment.BACKWARD)
        stays = self.reduces and self.host_events is None
        unused = group_of.keys() - set(self.parameters) if stays else ()
        for parameter in sorted(unused, key=lambda parameter: (group_of[parameter], parameter)):  # get_all_grad_tensors
            zeros = tape.allocate(self.itemsize * numel_of[parameter], Factor.GRADIENTS, "zero::get_all_grad_tensors")
            held[zeros] = group_of[parameter]
        if index and stays and not self.gathers:  # added into the first micro-step's gradients
            for buffer in held:
                tape.free(buffer)
        return Part(self, index, first, keep, partition, tape, held)


@dataclass(frozen=True, eq=False)
class Part:
    """One micro-step of one rank.

    Attributes:
        keep: which events of the template it has, those of the first step included.
        partition: event and bytes of the partition buffer; None where there is none.
        tape: what follows the template's events.
        held: buffers of its gradients -> the last group that needs each.
    """

    template: Template
    index: int
    first: int
    keep: np.ndarray
    partition: tuple[int, int] | None
    tape: Tape
    held: dict[int, int]

    @property
    def buffers(self) -> Buffers:
        """The engine's."""
        vocabulary, buffers = self.template.vocabulary, self.template.buffers
        if self.partition:
            size = buffers.size.copy()
            size[0] = vocabulary.size(self.partition[1])
            buffers = replace(buffers, size=size)
        return Buffers.concatenate([buffers, vocabulary.buffers(self.tape.attributes)])

    @property
    def end(self) -> int:
        """Number of the next engine buffer."""
        return self.tape.first + len(self.tape.attributes)

    def columns(self) -> np.ndarray:
        """``int32[3, events]``: kind, buffer, moment."""
        each = len(self.template.micro.events.buffers)
        kind, said, moment = self.template.columns[:, self.keep]
        buffer = np.where(said < each, said + self.index * each, said - each + self.first)
        first = np.where(~said < each, ~said, ~said + (self.template.micro_steps - 1) * each)
        buffer = np.where(said < 0, first, buffer)
        return np.concatenate([np.stack([kind, buffer, moment]), self.tape.columns()[:3]], axis=1)

    def seldom(self) -> np.ndarray:
        """``bool[events]``: what only the first step has."""
        return np.concatenate([~self.template.passing[self.keep], self.tape.seldom()])

    def rises(self, change: np.ndarray, traced_bytes: np.ndarray) -> list[Rise]:
        """Of the first step and of a later one; ``change`` is the template's."""
        result = []
        tape = self.tape.rises(lambda buffer: self.held_bytes(buffer, traced_bytes))
        for keep, (highest, growth) in zip((self.keep, self.keep & self.template.passing), tape):
            events = np.where(keep, change, 0)
            if self.partition:
                event, size_bytes = self.partition
                events[event] = size_bytes
            live = np.cumsum(events)
            result.append((max(int(live.max()), int(live[-1]) + highest), int(live[-1]) + growth))
        return result

    def held_bytes(self, buffer: int, traced_bytes: np.ndarray) -> int:
        """Bytes of one of its gradients."""
        if self.partition and buffer == self.first:
            return self.partition[1]
        if buffer >= self.tape.first:
            return self.tape.attributes[buffer - self.tape.first][0]
        if buffer >= self.first:
            return int(self.template.buffer_bytes[buffer - self.first])
        return int(traced_bytes[buffer % len(traced_bytes)])


def templates(micro: MicroStep, setup: Setup, groups: Sequence[Group], vocabulary: Vocabulary, *,
              buckets_at_first_hook: bool, records_streams: bool) -> list[Template]:
    """Each micro-step of a step, with buckets and reductions woven in."""
    count, own = setup.micro_steps, (micro, setup, groups, vocabulary, buckets_at_first_hook, records_streams)
    if setup.zero.stage == 2 and not setup.zero.offload_optimizer:
        return [_template(*own, reduces=True, gathers=False)] * count
    if setup.zero.stage == 2:
        return [_template(*own, reduces=True, gathers=False, last=number == count - 1, again=number > 0)
                for number in range(count)]
    return [_template(*own, reduces=number == count - 1, gathers=True, index=number) for number in range(count)]


def _template(micro: MicroStep, setup: Setup, groups: Sequence[Group], vocabulary: Vocabulary,
              buckets_at_first_hook: bool, records_streams: bool, *, reduces: bool, gathers: bool,
              index: int = 0, last: bool = True, again: bool = False) -> Template:
    zero, hooks = setup.zero, micro.ready.tolist()
    by_hooks = zero.overlap_comm or not gathers
    end = backward_end(micro) if gathers or zero.offload_optimizer else len(micro.events)
    ready = [(position, parameter, ~gradient if index else gradient) for position, parameter, gradient in hooks]
    if not by_hooks:  # reduce_gradients
        place = {parameter: number for number, parameter in enumerate(chain.from_iterable(setup.groups()))}
        ready = [(end, *row[1:]) for row in sorted(ready, key=lambda row: place[row[1]])]
    if not reduces:
        ready = []
    parameters = [parameter for _, parameter, _ in ready]
    numels = [setup.facts.parameters[parameter].numel for parameter in parameters]
    flushes = reduction.flushes(parameters, numels, groups, zero)
    side = REDUCTION_STREAM if zero.overlap_comm else MAIN_STREAM
    waits = zero.overlap_comm and not (zero.contiguous_gradients and zero.use_multi_rank_bucket_allreduce)
    tape = Tape(first=len(micro.events.buffers), moment=Moment.BACKWARD)
    partition = tape.declare(0, Factor.GRADIENTS, "zero::grads_in_partition", stream=side)
    partition_rows: list[int] = []
    release_rows: dict[int, int] = {}
    move_rows: dict[int, int] = {}
    use_rows: dict[int, int] = {}
    late: list[int] = []
    kept: list[int] = []
    gradients = [gradient for _, _, gradient in ready]
    host = ToHost(tape, groups, side, last=last, again=again) if zero.offload_optimizer else None

    def release(row: int) -> None:
        release_rows[row] = len(tape.rows)
        tape.free(gradients[row])

    def move(row: int) -> None:
        move_rows[row] = len(tape.rows)
        tape.free(gradients[row])

    def add_up() -> None:
        """Gradients are added into the first micro-step's; the hook of each, with what it reduces, still sees it."""
        for position, _, gradient in hooks if index else ():
            tape.position = position
            tape.free(gradient)

    def use(number: int, flush: reduction.Flush, bucket: int) -> None:
        """Tell the allocator that the reduction stream reads what the main stream made (``record_stream``)."""
        if not zero.contiguous_gradients:
            for row in flush.rows:
                tape.record_stream(gradients[row], side)
        elif zero.reduce_scatter or host:
            if () not in flush.copies and not host:  # copied: then only the owners of a part write it back
                use_rows[number] = len(tape.rows)
            tape.record_stream(gradients[flush.rows[0]] if flush.extra_large else bucket, side)

    def reduce(number: int, bucket: int) -> None:
        """``reduce_ipg_grads``: the collective's copies, then gradients move or go."""
        flush = flushes[number]
        for copies in flush.copies:
            if waits:
                tape.mark(Kind.SYNCHRONIZE)
            while late and not gathers:  # with overlap, of the reduction before this one
                release(late.pop())
            buffers = [tape.allocate(size, Factor.COMMUNICATION, "zero::allreduce_bucket", stream=side)
                       for size in copies]
            for buffer in buffers:
                tape.free(buffer)
        if zero.overlap_comm and records_streams:
            use(number, flush, bucket)
        if host:
            for row in flush.rows:
                host.copy(parameters[row])
        elif zero.contiguous_gradients:
            partition_rows.append(len(tape.rows))
            tape.again(partition)
        if flush.extra_large:
            row, = flush.rows
            if gathers:  # who owns no part of it keeps it to the end
                late.append(row)
                move(row)
            elif host and not last:  # and here who does
                kept.append(row)
                release(row)
            else:
                tape.free(gradients[row])
        elif zero.contiguous_gradients:
            return
        elif zero.overlap_comm or gathers:
            late.extend(flush.rows)
        else:
            for row in flush.rows:
                release(row)

    buckets = [tape.declare(setup.facts.itemsize * zero.reduce_bucket_size, Factor.COMMUNICATION, "zero::ipg_bucket")
               for _ in range(2 if zero.overlap_comm else 1)] if zero.contiguous_gradients and hooks else []
    if index:
        buckets = [~bucket for bucket in buckets]
    else:
        tape.position = hooks[0][0] if buckets_at_first_hook and hooks else 0
        for bucket in buckets:
            tape.again(bucket)
    if not by_hooks:
        add_up()
    number = 0
    for row, (position, _, gradient) in enumerate(ready):
        tape.position = position
        if flushes[number].before == row:
            reduce(number, buckets[number % len(buckets)] if buckets else -1)
            number += 1
        if zero.contiguous_gradients and numels[row] <= zero.reduce_bucket_size:
            tape.free(gradient)  # copied into the bucket
        elif host:
            gradients[row] = tape.allocate(setup.facts.itemsize * numels[row], Factor.GRADIENTS, "zero::clone")
            tape.free(gradient)
    tape.position = end
    if flushes:
        reduce(number, buckets[number % len(buckets)] if buckets else -1)
    if zero.overlap_comm and reduces:  # independent_gradient_partition_epilogue
        tape.mark(Kind.SYNCHRONIZE)
    while late and not gathers:
        release(late.pop())
    for bucket in buckets if reduces else ():
        tape.free(bucket)
    for row in sorted(late, key=lambda row: parameters[row]):  # _clear_param_grad_only
        release(row)
    for row in kept:
        move(row)
    if by_hooks:  # which still see it
        add_up()
    if zero.overlap_comm:
        for position in synchronizations(micro):
            tape.position = position
            tape.mark(Kind.SYNCHRONIZE)
    columns, places = weave(micro, tape)
    flush_of = [number for number, flush in enumerate(flushes) for _ in flush.rows]
    passing = ~np.isin(columns[1], micro.persistent)

    def events(rows: Mapping[int, int]) -> dict[int, int]:
        return {of: int(places[row]) for of, row in rows.items()}

    return Template(
        micro, vocabulary, columns, setup.micro_steps, passing, vocabulary.buffers(tape.attributes),
        np.array([size for size, *_ in tape.attributes], dtype=np.int64), reduces, parameters,
        [int(gradient) if gradient >= 0 else ~gradient for _, _, gradient in ready], flush_of,
        partition_events=places[partition_rows], release_events=events(release_rows), move_events=events(move_rows),
        use_events=events(use_rows), gathers=gathers, host_events=host.events(places) if host else None,
        norms=host.norms if host else {}, itemsize=setup.facts.itemsize)


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
