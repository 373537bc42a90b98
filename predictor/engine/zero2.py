"""DeepSpeed ZeRO-1 and ZeRO-2: allocations around and inside the traced micro-step, for each rank.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, class ``DeepSpeedZeroOptimizer``. ``zero2_releases`` lists
the differences of older releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from predictor.engine import optimizer, zero2_backward, zero2_init, zero2_offload, zero_scalars
from predictor.engine.compose import RankPeak, Stretch, Vocabulary
from predictor.engine.host_memory import Host
from predictor.engine.setup import FP32, Setup
from predictor.engine.tape import Tape
from predictor.engine.zero2_releases import has
from predictor.engine.zero2_template import RankMicroStep, SharedRises
from predictor.engine.zero_partition import Group, Slice, partition
from predictor.events.events import MOMENTS, Buffers, EventList, EventType, Factor, Moment
from predictor.events.micro_step import MicroStep

STEPS_AT_HAND, SHAPES_AT_HAND = 64, 4
"""Ranks whose step is kept, as some are composed after their peaks were compared; shapes whose peaks are kept."""


@dataclass(frozen=True)
class _Partition:
    """A rank's partition of one optimizer group.

    Attributes:
        pieces: the slices of parameters in it.
        pad: buffer of the zeros that fill it up; None if it is full.
        gradients: buffers that are not needed after its update.
    """

    group: Group
    pieces: list[Slice]
    pad: int | None
    gradients: list[int]

    def flatten(self, tape: Tape, itemsize: int) -> int | None:
        """Makes the partition's fp32 gradient and returns its buffer; None where it is a view of a single tensor."""
        flat, numel = None, self.group.partition_numel
        if len(self.pieces) + (self.pad is not None) > 1:
            flat = tape.allocate(itemsize * numel, Factor.GRADIENTS, "zero::flatten")
        if itemsize >= FP32:
            return flat
        gradient = tape.allocate(FP32 * numel, Factor.GRADIENTS, "zero::single_grad_partition")
        if flat is not None:
            tape.free(flat)
        return gradient


class Zero2:
    """A run under ZeRO-1 or ZeRO-2. What the ranks share is computed once; :meth:`rank` composes one of them."""

    depends_on_capacity = True  # it flattens on the GPU only where there is room

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        self.setup, self.zero = setup, setup.deepspeed
        self.steps = _steps(micro, replace(setup, capacity_bytes=None))
        start = zero2_init.start_up(setup, self.steps.groups, casts_buffers=not has(self.zero, "buffers_keep_dtype"),
                                    flatten_on_gpu=has(self.zero, "flatten_on_gpu"))
        self.start = Stretch(start.columns()[:3], 0, self.steps.vocabulary.buffers(start.buffers))
        self.start_rise = start.rises(int).first

    def rank(self, rank: int) -> EventList:
        """The events of a rank: start-up and three optimizer steps."""
        return self.steps.vocabulary.assemble(self.start, self.steps.stretch(rank))

    def rank_key(self, rank: int) -> tuple:
        """The slices that the rank owns in each group, and whether it computes the norm of unsharded parameters.

        Of the tensor-parallel ranks that share layers, only the first computes that norm.
        """
        rank, peer = self.setup.place(rank)
        return peer == 0, *(group.key(rank) for group in self.steps.groups)

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[RankPeak]:
        """Peak requested bytes of ranks, computed without composing them.

        Args:
            traced_bytes: the size of each traced buffer, in bytes.
        """
        start, rises = self.start_rise, self.steps.highest(tuple(ranks), traced_bytes.tobytes())
        steps = [max(0, start.growth + rise) for rise in rises]
        return [RankPeak(max(start.highest, peak), peak) for peak in steps]

    def host(self) -> Host:
        """The bytes that the first rank offloads; the others hold nearly the same."""
        host, pinned = Host(), self.zero.pins_states
        for group in self.steps.groups:
            numel = group.partition_numel
            host.hold("fp32 weights", FP32 * numel, pinned=pinned)
            host.hold("bf16 weights", self.setup.facts.itemsize * numel, pinned=pinned)
            host.hold("gradients", FP32 * numel, pinned=pinned)
        host.hold("gradients", self.setup.facts.itemsize * max(self.steps.numel_of.values()), pinned=pinned)
        if self.zero.stage == 2 and self.setup.micro_steps > 1:  # accumulated_grads_in_cpu
            for piece in (piece for group in self.steps.groups for piece in group.owned(0)):
                host.hold("gradients", self.setup.facts.itemsize * self.steps.numel_of[piece.parameter], pinned=pinned)
        host.hold_states(self.setup, [(group.partition_numel, self.setup.decays(group.parameters))
                                      for group in self.steps.groups])
        return host


@lru_cache(maxsize=8)
def _steps(micro: MicroStep, setup: Setup) -> _Steps:
    """The steps of runs that differ in nothing but their capacity, on which only start-up depends."""
    return _Steps(micro, setup)


class _Steps:
    """The optimizer steps after start-up."""

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        zero = setup.deepspeed
        self.micro, self.setup, self.zero = micro, setup, zero
        self.holder = 0 if zero.stage == 2 and not zero.offload_optimizer else setup.micro_steps - 1
        """The micro-step whose gradients, or gradient norms, the partition uses."""
        self.vocabulary = Vocabulary(micro)
        tensors = setup.facts.parameters
        self.groups = [partition(tuple(group), tuple(tensors[i].numel for i in group), setup.data_parallel_size,
                                 round_robin=zero.round_robin_gradients) for group in setup.groups()]
        self.backward = zero2_backward.templates(micro, setup, self.groups, self.vocabulary)
        self.numel_of = {p: n for group in self.groups for p, n in zip(group.parameters, group.numels)}
        self._step = lru_cache(STEPS_AT_HAND)(self._first_step)
        self.highest = lru_cache(SHAPES_AT_HAND)(self._highest)

    def stretch(self, rank: int) -> Stretch:
        """The first step of a rank."""
        parts, tape = self._step(rank)
        return Stretch(
            np.concatenate([part.columns() for part in parts] + [tape.columns()[:3]], axis=1), len(parts),
            Buffers.concatenate([part.buffers for part in parts] + [self.vocabulary.buffers(tape.buffers)]),
            np.concatenate([part.first_step_mask() for part in parts] + [tape.first_step_mask()]))

    def _highest(self, ranks: tuple[int, ...], traced: bytes) -> list[int]:
        """For each rank, how far the requested bytes rise above those after start-up.

        Args:
            traced: the size of each traced buffer in bytes, as ``int64``.
        """
        traced_bytes = np.frombuffer(traced, dtype=np.int64)
        outputs = 0 if self.setup.keep_outputs == "none" else int(traced_bytes[self.micro.outputs].sum())
        late = outputs if self.setup.keep_outputs == "next_forward" else 0
        changes = [template.change(traced_bytes) for template in self.backward]
        for template, change in zip(self.backward, changes):  # the last micro-step's outputs live through forward
            change[np.argmax(template.passing)] += late
            change[np.argmax(template.columns[2] == MOMENTS.index(Moment.BACKWARD))] -= late
        shared = [template.shared(index, change)
                  for index, (template, change) in enumerate(zip(self.backward, changes))]
        return [self._rise(rank, shared, traced_bytes, outputs, late) for rank in ranks]

    # one step of one rank ---------------------------------------------------------------------

    def _first_step(self, rank: int) -> tuple[list[RankMicroStep], Tape]:
        """The first optimizer step: micro-steps with their reductions, then ``step()``."""
        rank, peer = self.setup.place(rank)
        owned = [group.owned(rank) for group in self.groups]
        group_of = {piece.parameter: number for number, pieces in enumerate(owned) for piece in pieces}
        parts: list[RankMicroStep] = []
        next_buffer = self.setup.micro_steps * len(self.micro.events.buffers)
        for index, template in enumerate(self.backward):
            parts.append(template.play(index, next_buffer, rank, group_of, self.numel_of))
            next_buffer = parts[-1].end
        tape = Tape(first=next_buffer, moment=Moment.BACKWARD)
        self._optimizer_step(tape, owned, parts[self.holder].held, first=peer == 0)
        return parts, tape

    def _rise(self, rank: int, shared: list[SharedRises], traced_bytes: np.ndarray, outputs: int, late: int) -> int:
        """The rise of a rank, where micro-steps leave ``outputs`` bytes, of which ``late`` live through ``step()``."""
        parts, tape = self._step(rank)
        rises = [part.rises(common, traced_bytes).plus(0, -outputs) for part, common in zip(parts, shared)]
        rises.append(tape.rises(lambda buffer: parts[self.holder].held_bytes(buffer, traced_bytes)).plus(late, 0))
        live, highest = 0, 0
        for number, rise in enumerate([*(pair.first for pair in rises), *(pair.later for pair in rises)]):
            highest = max(highest, live + rise.highest) if number else rise.highest
            live += rise.growth
        return highest

    def _optimizer_step(self, tape: Tape, owned: list[list[Slice]], held: dict[int, int], *, first: bool) -> None:
        """``step()``: pads of partitions that are not full, overflow check, norm, then one update for each group.

        Args:
            held: buffer of a gradient -> the last group whose update needs it.
            first: whether this is the first of the ranks that share layers, which computes the norm of the parameters
                that are not sharded.
        """
        if self.zero.offload_optimizer:
            return zero2_offload.step(tape, held, [] if has(self.zero, "narrows_on_host") else
                                      [group.partition_numel for group in self.groups])
        partitions = [_Partition(group, pieces, self._pad(tape, group, pieces),
                                 [buffer for buffer, needed_by in held.items() if needed_by == number])
                      for number, (group, pieces) in enumerate(zip(self.groups, owned))]
        tape.moment = Moment.OPTIMIZER_STEP
        losses = [] if has(self.zero, "logs_no_losses") else [
            zero_scalars.logged_loss(tape, self.micro, self.setup.micro_steps)]
        self._overflow_check(tape, owned)
        norms = self._norms(tape, owned, first=first) if self.zero.compute_grad_norm else []
        steps = self.setup.optimizer()
        for own in partitions:
            self._update(tape, own, steps)
        if norms:
            with tape.first_step_only():  # later steps replace it, and free what they have allocated themselves
                tape.allocate(FP32, Factor.OPTIMIZER_STATES, zero_scalars.GLOBAL_NORM)
        for scalar in norms + losses:
            tape.free(scalar)

    def _norms(self, tape: Tape, owned: list[list[Slice]], *, first: bool) -> list[int]:
        """The norm of all gradients, and that norm divided by the loss scale (``scaled_global_norm``, ``step``)."""
        groups = [zero_scalars.group_norm(tape, [piece.numel for piece in pieces
                                                 if first or self.setup.facts.parameters[piece.parameter].sharded],
                                          self.setup.gpu, FP32) for pieces in owned]
        scaled = tape.allocate(FP32, Factor.TEMPORARIES, "zero::scaled_global_grad_norm")
        for group in groups:
            tape.free(group)
        if self.zero.check_grad_overflow or self.zero.dtype != "bf16":
            tape.mark(EventType.SYNCHRONIZE)  # is_invalid_grad_norm
        return [scaled, tape.allocate(FP32, Factor.OPTIMIZER_STATES, zero_scalars.GLOBAL_NORM)]

    def _update(self, tape: Tape, own: _Partition, steps: optimizer.Steps) -> None:
        """Flattens the gradients of a partition to one tensor, updates the master weights, and frees the gradient."""
        gradient = own.flatten(tape, self.setup.facts.itemsize)
        for buffer in own.gradients if gradient is not None else ():
            tape.free(buffer)
        if own.pad is not None:
            tape.free(own.pad)
        if self.zero.compute_grad_norm and self.zero.gradient_clipping:
            tape.mark(EventType.SYNCHRONIZE)  # unscale_and_clip_grads reads whether the norm is valid
            zero_scalars.clip(tape, FP32)
        steps.step(tape, [optimizer.partition(own.group.partition_numel, FP32)],
                   decay=self.setup.decays(own.group.parameters))
        for buffer in own.gradients if gradient is None else [gradient]:  # a view keeps the gradients alive
            tape.free(buffer)

    def _pad(self, tape: Tape, group: Group, pieces: list[Slice]) -> int | None:
        """Allocates the zeros that fill up a partition, if it is not full (``get_flat_partition``)."""
        missing = group.partition_numel - sum(piece.numel for piece in pieces)
        return tape.allocate(self.setup.facts.itemsize * missing, Factor.GRADIENTS, "zero::pad") if missing else None

    def _overflow_check(self, tape: Tape, owned: list[list[Slice]]) -> None:
        """``has_overflow_partitioned_grads_serial``: before 0.19.6 fp32 copies and masks, 11 bytes for each element."""
        if not self.zero.check_grad_overflow:
            return
        for piece in (piece for pieces in owned for piece in pieces):
            if has(self.zero, "overflow_check_by_extrema"):
                break  # scalars only
            zero2_offload.check_overflow_in_copies(tape, piece.numel)
        tape.mark(EventType.SYNCHRONIZE)  # has_overflow reads the result
