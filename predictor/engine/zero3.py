"""DeepSpeed ZeRO-3: parameters, gradients and optimizer states are partitioned; parameters are gathered for their use.

DeepSpeed 0.19.8, runtime/zero/stage3.py, class ``DeepSpeedZeroOptimizer_Stage3``. :data:`SWITCHES` lists the
differences of older releases. The whole model is first moved to
the device and then partitioned (no ``zero.Init``). Every rank holds the same number of bytes, because each parameter is
padded to a multiple of the data-parallel degree. The micro-step must have been traced with ZeRO-3's hooks
(``predictor.trace.zero3_hooks``).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

from predictor.common.errors import InputError
from predictor.engine import optimizer, zero_scalars
from predictor.engine.common import AlikeRanks, to_device
from predictor.engine.compose import Vocabulary
from predictor.engine.host_memory import Host
from predictor.engine.setup import FP32, FP64, STEPS, Setup
from predictor.engine.tape import MAIN_STREAM, Tape
from predictor.engine.zero2_backward import backward_end, synchronizations
from predictor.engine.zero3_gathers import Gathers, gather_one, partition_numel
from predictor.engine.zero3_reduction import Reduction
from predictor.engine.zero3_waits import Waits
from predictor.events.events import EventList, EventType, Factor, Moment
from predictor.events.micro_step import Mark, MicroStep

GATHER_STREAM, REDUCTION_STREAM = 1, 2
SWITCHES = {
    "masters_from_wide_copies": (0, 18, 3),
    "ends_backward_of_modules": (0, 19, 3),
}
"""Behaviour -> the first release that has it.

- ``masters_from_wide_copies``: master weights are cloned from a copy in fp32, which lives until the next group's.
  Before, they are converted from a copy in the weights' dtype (stage3.py, ``_create_fp32_partitions``).
- ``ends_backward_of_modules``: frozen parameters that a recomputation gathers stay until the backward that started the
  recomputation ends, and modules whose backward has no end release their parameters after the micro-step's backward
  (partitioned_param_coordinator.py, ``update_recompute_parameters``, ``release_backward_leftovers``). Before, a
  recomputation's module releases them at its end, and modules without an end keep theirs until the optimizer's step.
"""
COUNTS_ON = (0, 16, 0), (0, 16, 8)
"""The first release that counts inputs and available parameters on where it begins anew before and after, and the first
that no longer does (parameter_offload.py, ``ds_grads_remaining``; partitioned_param_coordinator.py,
``__n_available_params``). The inputs of a recomputed module then never come back to zero: its backward has no end."""
_FORWARD_TOO = (Mark.ENTER, Mark.LEAVE, Mark.EXTERNAL, Mark.HOLD, Mark.LET_GO)


class _Begin(NamedTuple):
    """Where a step begins on the tape.

    Attributes:
        left: what the step before has left (:meth:`Gathers.left`).
        gathered: the buffers of gathered parameters, in the order of ``left``, without those that have none.
        event, buffer: numbers of the step's first event and of its first buffer.
    """

    left: Hashable
    gathered: tuple[int, ...]
    event: int
    buffer: int

    @staticmethod
    def of(tape: Tape, gathers: Gathers) -> _Begin:
        """The beginning of the next step."""
        buffers = tuple(buffer for buffer in gathers.gathered.values() if buffer is not None)
        return _Begin(gathers.left(), buffers, len(tape), tape.first + len(tape.buffers))


class Zero3(AlikeRanks):
    """A run under ZeRO-3, equal on all ranks."""

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        _refuse(setup)
        assert micro.marks is not None and micro.owners is not None  # traced with ZeRO-3's hooks
        self.micro, self.setup, self.zero = micro, setup, setup.deepspeed
        self.marks: list[list[int]] = micro.marks.tolist()
        self.owners: list[list[int]] = micro.owners.tolist()
        self.tensors = [tensor for tensor in setup.facts.parameters if not tensor.buffer]
        self.degree, self.itemsize = setup.data_parallel_size, setup.facts.itemsize
        self.sub_groups = [part for group in setup.groups() for part in self._sub_groups(group)]
        own: dict[int, list[int]] = defaultdict(list)
        external = {row for _, mark, row in self.marks if mark == Mark.EXTERNAL}  # known when a module reads them
        for row, (module, parameter) in enumerate(self.owners):
            if row not in external:
                own[module].append(parameter)
        self.synchronizations = synchronizations(micro)
        since, until = COUNTS_ON
        self.counts_on = since <= self.zero.version < until
        self.endless = {number for _, mark, number in self.marks
                        if mark == Mark.RECOMPUTE and self.counts_on and not setup.reentrant_checkpoints}
        """Modules whose backward has no end."""
        self.events = self._run({module: sorted(parameters) for module, parameters in own.items()})

    def has(self, behaviour: str) -> bool:
        """Whether this release of DeepSpeed has a behaviour of :data:`SWITCHES`."""
        return self.zero.version >= SWITCHES[behaviour]

    # partitions -------------------------------------------------------------------------------

    def _partition_numel(self, parameter: int) -> int:
        return partition_numel(self.tensors[parameter], self.degree)

    def _numel(self, parameters: Sequence[int]) -> int:
        """Elements of a rank's partitions of these parameters."""
        return sum(map(self._partition_numel, parameters))

    def _sub_groups(self, group: list[int]) -> list[list[int]]:
        """``_create_fp16_sub_groups``."""
        if self.zero.sub_group_size >= self._numel(group):
            return [group]
        parts: list[list[int]] = [[]]
        for parameter in group:
            parts[-1].append(parameter)
            if self._numel(parts[-1]) >= self.zero.sub_group_size:
                parts.append([])
        return [part for part in parts if part]

    def _persistent(self) -> frozenset[int]:
        """Small parameters that stay gathered (``mark_persistent_parameters``)."""
        chosen, total = set(), 0
        for index, tensor in enumerate(self.tensors):
            if total + tensor.numel <= self.zero.model_persistence_threshold \
                    and tensor.numel <= self.zero.param_persistence_threshold:
                chosen.add(index)
                total += tensor.numel
        return frozenset(chosen)

    def host(self) -> Host:
        """The bytes that every rank offloads."""
        host, zero = Host(), self.zero
        sizes = [self._numel(group) for group in self.sub_groups]
        if zero.offload_param:
            for index in range(len(self.tensors)):  # trainable ones move on, but PyTorch keeps their pinned memory
                host.hold("bf16 weights", self.itemsize * self._partition_numel(index), pinned=zero.pins_weights)
            for group in self.setup.groups():
                host.hold("bf16 weights", self.itemsize * self._numel(group), pinned=True)
        if zero.offload_optimizer:
            for size in sizes:
                host.hold("fp32 weights", FP32 * size, pinned=False)
                host.hold("gradients", FP32 * size, pinned=zero.pins_states)
            host.hold("gradients", self.itemsize * sum(sizes), pinned=zero.pins_states)
            host.hold_states(self.setup, [(size, self.setup.decays(group))
                                          for size, group in zip(sizes, self.sub_groups)])
        return host

    # the run ----------------------------------------------------------------------------------

    def _run(self, own: dict[int, list[int]]) -> EventList:
        micro, count = self.micro, self.setup.micro_steps
        length = len(micro.events)
        tape = Tape(first=STEPS * count * len(micro.events.buffers))
        self._start_up(tape)
        ends = [len(tape)]
        overlap = self.zero.overlap_comm
        waits = Waits(tape, several=overlap)
        gathers = Gathers(tape, self.tensors, own, self._persistent(), self.zero, self.degree,
                          GATHER_STREAM if overlap else MAIN_STREAM, waits,
                          ends_backward_of_modules=self.has("ends_backward_of_modules"),
                          counts_on=self.counts_on)
        steps, before = self.setup.optimizer(), None
        for step in range(STEPS):
            begin = _Begin.of(tape, gathers)
            if before and step > 1 and begin.left == before.left:
                tape.repeat(before.event, before.buffer, traced=count * len(micro.events.buffers),
                            positions=count * length, renamed=dict(zip(before.gathered, begin.gathered)))
                ends.append(len(tape))
                continue
            before = begin
            for index in range(step * count, (step + 1) * count):
                tape.position = index * length
                norms = self._micro_step(tape, gathers, index, REDUCTION_STREAM if overlap else MAIN_STREAM)
            tape.position = (step + 1) * count * length
            self._optimizer_step(tape, gathers, steps, norms, first=step == 0)
            ends.append(len(tape))
        return Vocabulary(micro).whole(tape, STEPS * count, ends)

    def _start_up(self, tape: Tape) -> None:
        parts, stays = self._partition(tape), not self.zero.offload_optimizer
        if stays:
            tape.allocate(1, Factor.OPTIMIZER_STATES, "zero::inf_or_nan_tracker")
        trainable = [parameter for group in self.sub_groups for parameter in group]
        if parts:  # defragment
            for parameter in trainable:
                tape.free(parts[parameter])
            tape.mark(EventType.EMPTY_CACHE)
            tape.allocate(self.itemsize * self._numel(trainable), Factor.PARAMETERS, "zero::defragment")
        if stays:
            self._master_weights(tape)
        if self.zero.contiguous_gradients:
            tape.allocate(self.itemsize * self.zero.reduce_bucket_size, Factor.COMMUNICATION, "zero::ipg_bucket")
        if stays:
            tape.allocate(self.itemsize * self._numel(trainable), Factor.GRADIENTS, "zero::grad_partitions")
        for parameter in trainable:  # create_reduce_and_remove_grad_hooks
            tape.free(gather_one(tape, self.tensors[parameter], self.degree, self.zero))

    def _partition(self, tape: Tape) -> dict[int, int]:
        """``Init``, ``_zero_init_param``: partitions the parameters.

        Returns:
            Index of a parameter -> the buffer of its partition; empty if the host holds the partitions.
        """
        buffers, parts = to_device(tape, self.setup), {}
        for index, tensor in enumerate(self.tensors):
            if not self.zero.offload_param:
                parts[index] = tape.allocate(self.itemsize * self._partition_numel(index), Factor.PARAMETERS,
                                             "zero::partition", module=tensor.module)
            tape.free(buffers[index])
        return parts

    def _master_weights(self, tape: Tape) -> None:
        converted = None
        stays = self.has("masters_from_wide_copies")
        for group in self.sub_groups:  # _create_fp32_partitions
            numel, old = self._numel(group), converted
            if self.itemsize < FP32:
                converted = tape.allocate((FP32 if stays else self.itemsize) * numel, Factor.OPTIMIZER_STATES,
                                          "zero::converted")
            if old is not None:
                tape.free(old)
            tape.allocate(FP32 * numel, Factor.OPTIMIZER_STATES, "zero::master_weights")
            if converted is not None and not stays:
                tape.free(converted)
                converted = None
        if converted is not None:
            tape.free(converted)
        gradient = tape.allocate(FP32 * max(map(self._numel, self.sub_groups)), Factor.GRADIENTS,
                                 "zero::initialize_optimizer_states")
        tape.free(gradient)

    def _micro_step(self, tape: Tape, gathers: Gathers, index: int, stream: int) -> list[int]:
        """Records micro-step ``index``. Returns the buffers of the norms of offloaded gradients, for ``step()``."""
        micro, base = self.micro, index * len(self.micro.events)
        waits, waited = gathers.waits, deque(self.synchronizations)
        reduction = Reduction(tape, self.tensors, self.setup, stream, waits,
                              last=(index + 1) % self.setup.micro_steps == 0)
        losses = zero_scalars.losses(tape, micro, base=base)
        tape.moment, tape.position = Moment.FORWARD, base
        gathers.begin()
        hooks = self._hooks(gathers, reduction, index)

        def advance(position: int) -> None:
            while waited and waited[0] <= position:
                tape.position = base + waited.popleft()
                waits.synchronize()
            tape.position = base + position

        for position, mark, number in self.marks:
            advance(position)
            if mark not in _FORWARD_TOO:
                tape.moment = Moment.BACKWARD
            hooks[mark](number)
        advance(len(micro.events))
        tape.moment = Moment.BACKWARD
        if self.zero.offload_optimizer:
            tape.position = base + backward_end(micro)
        reduction.reduce()
        waits.synchronize()  # independent_gradient_partition_epilogue
        gathers.end_backward()
        for loss in losses:
            tape.free(loss)
        return reduction.norms

    def _hooks(self, gathers: Gathers, reduction: Reduction, index: int) -> dict[int, Callable[[int], None]]:
        """The action at each type of mark in micro-step ``index``; its argument is the mark's index."""
        first_buffer, ready = index * len(self.micro.events.buffers), self.micro.ready.tolist()

        def read(row: int) -> None:
            if index == 0:
                module, parameter = self.owners[row]
                gathers.read_external(module, parameter)

        def reduce(row: int) -> None:
            _, parameter, gradient = ready[row]
            reduction.add(parameter, first_buffer + gradient)

        def end(module: int) -> None:
            if module not in self.endless:
                gathers.leave(module, forward=False)

        return {
            Mark.ENTER: partial(gathers.fetch, forward=True),
            Mark.LEAVE: partial(gathers.leave, forward=True),
            Mark.BEFORE_BACKWARD: partial(gathers.fetch, forward=False),
            Mark.AFTER_BACKWARD: end,
            Mark.RECOMPUTE: partial(gathers.fetch, forward=True, recompute=True),
            Mark.EXTERNAL: read, Mark.READY: reduce, Mark.HOLD: gathers.hold, Mark.LET_GO: gathers.let_go,
        }

    def _optimizer_step(self, tape: Tape, gathers: Gathers, steps: optimizer.Steps, norms: list[int], *,
                        first: bool) -> None:
        tape.moment = Moment.OPTIMIZER_STEP
        gathers.release_all()
        if self.zero.dtype == "fp16":
            self._overflow_check(tape, gathers.waits)
        on_gpu = [] if self.zero.offload_optimizer else self.sub_groups
        global_norms = self._norms(tape, on_gpu)
        gathers.waits.synchronize()  # is_invalid_grad_norm
        for group in on_gpu:
            self._update(tape, group, steps, first=first)
        for norm in norms:  # reset_cpu_buffers
            tape.free(norm)
        gathers.gather_persistent()
        for norm in global_norms[first:]:  # the first step's norm stays, for later steps to replace
            tape.free(norm)

    def _update(self, tape: Tape, group: list[int], steps: optimizer.Steps, *, first: bool) -> None:
        """Flattens the gradients of a sub-group, updates its master weights, and frees the gradient."""
        numel, gradient = self._numel(group), None
        if len(group) > 1:
            gradient = tape.allocate(self.itemsize * numel, Factor.GRADIENTS, "zero::flatten")
        if self.itemsize < FP32:
            flat = gradient
            gradient = tape.allocate(FP32 * numel, Factor.GRADIENTS, "zero::single_grad_partition")
            if flat is not None:
                tape.free(flat)
        if self.zero.gradient_clipping:
            zero_scalars.clip(tape, FP64)
        begin = len(tape)
        steps.step(tape, [optimizer.partition(numel, FP32)], decay=self.setup.decays(group))
        if not first:
            tape.drop_once(begin)
        if gradient is not None:
            tape.free(gradient)

    def _norms(self, tape: Tape, groups: list[list[int]]) -> list[int]:
        """The norm of all gradients divided by the loss scale, that norm, and each group's; all in fp64 (``step``)."""
        if not groups:
            return []
        norms = [zero_scalars.group_norm(tape, [self._partition_numel(parameter) for parameter in group],
                                         self.setup.gpu, FP64) for group in groups]
        norms.append(tape.allocate(FP64, Factor.TEMPORARIES, "zero::scaled_global_grad_norm"))
        return [tape.allocate(FP64, Factor.OPTIMIZER_STATES, zero_scalars.GLOBAL_NORM), *norms]

    def _overflow_check(self, tape: Tape, waits: Waits) -> None:
        """``has_overflow``: magnitudes of all gradients with flags of infinite ones, then flags of NaN."""
        numel = self._numel([parameter for group in self.sub_groups for parameter in group])
        stream = REDUCTION_STREAM if self.zero.overlap_comm else MAIN_STREAM

        def allocate(size: int) -> int:
            return tape.allocate(size, Factor.TEMPORARIES, "zero::has_overflow", stream=stream)

        magnitudes, infinite = allocate(self.itemsize * numel), allocate(numel)
        tape.free(magnitudes)
        tape.free(infinite)
        tape.free(allocate(numel))
        waits.synchronize()


def _refuse(setup: Setup) -> None:
    """Rejects settings that are not modelled for this model's parameters."""
    if not setup.deepspeed.reduce_scatter and any(tensor.trainable and tensor.numel % setup.data_parallel_size
                                       for tensor in setup.facts.parameters):
        raise InputError("deepspeed: zero_optimization.reduce_scatter false is not modelled yet in ZeRO stage 3 where "
                         "a parameter does not divide evenly among the ranks: leave it out")
    if any(not tensor.buffer and tensor.itemsize != setup.facts.itemsize for tensor in setup.facts.parameters):
        raise InputError("ZeRO stage 3 is predicted for models whose parameters are all of one dtype")
