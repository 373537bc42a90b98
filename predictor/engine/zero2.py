"""DeepSpeed ZeRO-2 in bf16: what it allocates around and inside the traced micro-step, by rank.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, class ``DeepSpeedZeroOptimizer``; differences of older
releases are in :data:`SWITCHES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.engine import optimizer, reduction
from predictor.engine.compose import MAIN_STREAM, Section, assemble
from predictor.engine.partition import Group, partition
from predictor.engine.setup import Setup
from predictor.errors import InputError
from predictor.events import EventList, Factor, Moment
from predictor.formula import MicroStep

SWITCHES = {
    "buckets_at_first_hook": (0, 18, 3),
    "flatten_on_gpu": (0, 19, 0),
    "overflow_check_by_extrema": (0, 19, 6),
}
"""Behaviour -> the first release that has it."""

REDUCTION_STREAM = 1
FP32, BF16, FP64 = 4, 2, 8
STEPS = 3


@dataclass(frozen=True, eq=False)
class Plan:
    """What all ranks share: layout of the groups and the reductions of one backward pass."""

    groups: tuple[Group, ...]
    flushes: tuple[reduction.Flush, ...]
    parameters: tuple[int, ...]
    numels: tuple[int, ...]


def plan(micro: MicroStep, setup: Setup) -> Plan:
    """Lay out partitions and reductions."""
    zero = setup.zero
    if zero.grad_accum_dtype != "bf16":
        raise InputError("deepspeed: data_types.grad_accum_dtype fp32 is not modelled yet: leave it out or set bf16")
    if zero.parameter_alignment:
        raise InputError("deepspeed: zero_optimization.parameter_alignment is not modelled yet: leave it out")
    tensors = setup.facts.parameters
    groups = tuple(partition(group, [tensors[i].numel for i in group], setup.data_parallel_size,
                             round_robin=zero.round_robin_gradients) for group in setup.groups())
    parameters = tuple(int(p) for p in micro.ready[:, 1])
    numels = tuple(tensors[p].numel for p in parameters)
    return Plan(groups, tuple(reduction.flushes(parameters, numels, groups, zero)), parameters, numels)


def compose(micro: MicroStep, setup: Setup, shared: Plan, rank: int) -> EventList:
    """The run of one rank: start-up and three steps, the later two alike."""
    run = _Rank(micro, setup, shared, rank)
    start, first, steady = run.start_up(), run.step(first=True), run.step(first=False)
    return assemble(micro, [(start, 0), (first, 1)] + [(steady, step) for step in range(2, STEPS + 1)])


class _Rank:
    """One rank's part; each method writes one section."""

    def __init__(self, micro: MicroStep, setup: Setup, shared: Plan, rank: int) -> None:
        self.micro, self.setup, self.plan, self.rank = micro, setup, shared, rank
        self.zero = setup.zero
        self.adamw = optimizer.VARIANTS[setup.optim]
        self.owned = [group.owned(rank) for group in shared.groups]
        self.group_of = {piece.parameter: number for number, pieces in enumerate(self.owned) for piece in pieces}
        self.last_group = max(self.group_of.values(), default=-1)
        numel = {p: n for group in shared.groups for p, n in zip(group.parameters, group.numels)}
        self.numel = numel
        self.partition_bytes = BF16 * sum(numel[p] for p in self.group_of)
        self.side = REDUCTION_STREAM if self.zero.overlap_comm else MAIN_STREAM

    def has(self, behaviour: str) -> bool:
        return self.zero.version >= SWITCHES[behaviour]

    # start-up ---------------------------------------------------------------------------------

    def start_up(self) -> Section:
        """``_configure_distributed_model``, then ``__init__`` of the optimizer."""
        section = Section(self.micro)
        tensors = self.setup.facts.parameters
        buffers = [section.allocate(t.bytes, Factor.PARAMETERS, "to", module=t.name.rpartition(".")[0])
                   for t in tensors]
        live = sum(t.bytes for t in tensors)
        for group in self.plan.groups:
            live += self._flatten(section, group, buffers, live)
        gradients = [section.allocate(FP32 * g.partition_numel, Factor.GRADIENTS, "zero::initialize_optimizer_states")
                     for g in self.plan.groups]
        for buffer in gradients:
            section.free(buffer)
        return section

    def _flatten(self, section: Section, group: Group, buffers: list[int], live: int) -> int:
        """One group's flat buffer and master weights; returns the growth of what stays."""
        flat_bytes = BF16 * group.flat_numel
        capacity = self.setup.capacity_bytes
        pad = group.flat_numel - sum(group.numels)
        copied = len(group.parameters) > 1 or pad > 0
        on_gpu = self.has("flatten_on_gpu") and (capacity is None or capacity - live >= flat_bytes)
        if on_gpu and copied:
            padding = section.allocate(BF16 * pad, Factor.PARAMETERS, "zero::pad") if pad else None
            section.allocate(flat_bytes, Factor.PARAMETERS, "zero::flatten")
            if padding is not None:
                section.free(padding)
        if not on_gpu or copied:
            for parameter in group.parameters:
                section.free(buffers[parameter])
        if not on_gpu:
            section.allocate(flat_bytes, Factor.PARAMETERS, "zero::flatten")
        clone = section.allocate(BF16 * group.partition_numel, Factor.PARAMETERS, "zero::clone")
        section.allocate(FP32 * group.partition_numel, Factor.OPTIMIZER_STATES, "zero::master_weights")
        section.free(clone)
        return BF16 * pad + FP32 * group.partition_numel

    # one step ---------------------------------------------------------------------------------

    def step(self, *, first: bool) -> Section:
        """Micro-steps with reductions, then ``step()``."""
        micro_steps = self.setup.gradient_accumulation_steps
        section = Section(self.micro, micro_steps)
        kept: dict[int, int] = {}
        for index in range(micro_steps):
            section.enter(Moment.FORWARD)
            gradients = self._backward(section, index, first=first and index == 0)
            if kept:
                for buffer in gradients:  # added into the first micro-step's
                    section.free(buffer)
            else:
                kept = gradients
        self._optimizer_step(section, kept, first=first)
        return section

    def _backward(self, section: Section, index: int, *, first: bool) -> dict[int, int]:
        """One micro-step and its reductions.

        Returns the buffers that hold the partition's gradients, each with the group whose update is
        the last to need it.
        """
        zero = self.zero
        buckets: list[int] = []

        def make_buckets() -> None:
            if zero.contiguous_gradients:
                for _ in range(2 if zero.overlap_comm else 1):
                    buckets.append(section.allocate(BF16 * zero.reduce_bucket_size, Factor.COMMUNICATION,
                                                    "zero::ipg_bucket"))

        held: dict[int, int] = {}
        late: list[int] = []
        by_row = {flush.before: flush for flush in self.plan.flushes}
        if self.has("buckets_at_first_hook") and len(self.plan.numels):
            section.at(0)
        make_buckets()
        for row, numel in enumerate(self.plan.numels):
            flush = by_row.get(row)
            copied = zero.contiguous_gradients and numel <= zero.reduce_bucket_size
            if flush is None and not copied:
                continue
            section.at(row)
            if flush is not None:
                self._reduce(section, index, flush, held, late)
            if copied:
                section.free(section.gradient(index, row))
        section.run_micro_step(index, with_persistent=first)
        section.enter(Moment.BACKWARD)
        if None in by_row:
            self._reduce(section, index, by_row[None], held, late)
        for buffer in late:
            section.free(buffer)
        held |= self._without_gradient(section)
        for buffer in buckets:
            section.free(buffer)
        return held

    def _reduce(self, section: Section, index: int, flush: reduction.Flush, held: dict[int, int],
                late: list[int]) -> None:
        """``reduce_ipg_grads``: the collective's copies, then owned gradients move to the partition buffer."""
        zero = self.zero
        if zero.overlap_comm and not zero.contiguous_gradients:
            while late:  # of the reduction before this one
                section.free(late.pop())
        for copies in flush.copies:
            buffers = [section.allocate(size, Factor.COMMUNICATION, "zero::allreduce_bucket", stream=self.side)
                       for size in copies]
            for buffer in buffers:
                section.free(buffer)
        for row in flush.rows:
            gradient = section.gradient(index, row)
            group = self.group_of.get(self.plan.parameters[row])
            if zero.contiguous_gradients:
                if group is not None and not held:
                    buffer = section.allocate(self.partition_bytes, Factor.GRADIENTS, "zero::grads_in_partition",
                                              stream=self.side)
                    held[buffer] = self.last_group  # one buffer for all groups
                if flush.extra_large:
                    section.free(gradient)
            elif group is not None:
                held[gradient] = group
            elif zero.overlap_comm:
                late.append(gradient)
            else:
                section.free(gradient)

    def _without_gradient(self, section: Section) -> dict[int, int]:
        """Owned parameters that got no gradient are given zeros (``get_all_grad_tensors``)."""
        missing = self.group_of.keys() - set(self.plan.parameters)
        return {section.allocate(BF16 * self.numel[parameter], Factor.GRADIENTS, "zero::get_all_grad_tensors"):
                self.group_of[parameter] for parameter in sorted(missing)}

    def _optimizer_step(self, section: Section, gradients: dict[int, int], *, first: bool) -> None:
        """``step()``: pads of short partitions, overflow check, norm, then group by group."""
        pads = [self._pad(section, group, pieces) for group, pieces in zip(self.plan.groups, self.owned)]
        section.enter(Moment.OPTIMIZER_STEP)
        self._overflow_check(section)
        if self.zero.compute_grad_norm:
            for pieces in self.owned:
                self._norm(section, pieces)
        for number, (group, pieces) in enumerate(zip(self.plan.groups, self.owned)):
            tensors = len(pieces) + (pads[number] is not None)
            flat = None
            if tensors > 1:
                flat = section.allocate(BF16 * group.partition_numel, Factor.GRADIENTS, "zero::flatten")
            size = FP32 * group.partition_numel
            gradient = section.allocate(size, Factor.GRADIENTS, "zero::single_grad_partition")
            if flat is not None:
                section.free(flat)
            for buffer, needed_by in gradients.items():
                if needed_by == number:
                    section.free(buffer)
            if pads[number] is not None:
                section.free(pads[number])
            if first:
                optimizer.make_states(section, self.adamw, [("", size)])
            optimizer.update(section, self.adamw, [("", size)])
            section.free(gradient)
        section.flush()

    def _pad(self, section: Section, group: Group, pieces: list) -> int | None:
        missing = group.partition_numel - sum(piece.numel for piece in pieces)
        return section.allocate(BF16 * missing, Factor.GRADIENTS, "zero::pad") if missing else None

    def _overflow_check(self, section: Section) -> None:
        """``has_overflow_partitioned_grads_serial``: before 0.19.6 an fp32 copy and masks, 11 bytes an element."""
        if not self.zero.check_grad_overflow or self.has("overflow_check_by_extrema"):
            return  # since then scalars only
        for piece in (piece for pieces in self.owned for piece in pieces):
            buffers = [section.allocate(width * piece.numel, Factor.TEMPORARIES, "zero::has_inf_or_nan")
                       for width in (FP32, 1, 1, 1, FP32)]
            for buffer in buffers:
                section.free(buffer)

    def _norm(self, section: Section, pieces: list) -> None:
        """``get_grad_norm_direct``: one fp64 copy at a time, and a scalar each until the group is done."""
        scalars = []
        for piece in pieces:
            copy = section.allocate(FP64 * piece.numel, Factor.TEMPORARIES, "zero::get_grad_norm")
            scalars.append(section.allocate(FP64, Factor.TEMPORARIES, "zero::get_grad_norm"))
            section.free(copy)
        for scalar in reversed(scalars):
            section.free(scalar)
