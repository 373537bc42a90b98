"""FSDP2: the parameters, gradients and optimizer states of every unit are sharded on their first dimension.

PyTorch 2.11, torch/distributed/fsdp/_fully_shard (``fully_shard``). ``fully_shard`` moves each unit to the device and
shards it before the next one. Shards are padded to the size of the first rank's, so the first rank holds the most. The
micro-step must have been traced with FSDP2's hooks (``predictor.trace.fsdp2_hooks``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from predictor.common.errors import InputError
from predictor.engine import torch_loop
from predictor.engine.compose import RankPeak, Vocabulary
from predictor.engine.fsdp2_units import ROOT, Shard, Unit, Units, rank_changes
from predictor.engine.optimizer import Steps
from predictor.engine.setup import BF16, FP32, STEPS, Setup
from predictor.engine.tape import Tape
from predictor.events.events import EventList, Factor, Moment
from predictor.events.micro_step import Mark, MicroStep
from predictor.events.model_facts import Parameter
from predictor.workload import fsdp_keys

ITEMSIZES = {"bf16": BF16, "fp32": FP32, None: None}


class Fsdp2:
    """A run under FSDP2."""

    depends_on_capacity = False

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        assert setup.fsdp is not None  # set for this engine
        assert micro.marks is not None and micro.owners is not None  # traced with FSDP2's hooks
        self.micro, self.setup, self.keys = micro, setup, setup.fsdp
        self.marks: list[list[int]] = micro.marks.tolist()
        self.tensors = setup.facts.parameters
        self.param, self.reduce = (ITEMSIZES[self.keys[name]] for name in ("param_dtype", "reduce_dtype"))
        self.owned: dict[int, list[int]] = defaultdict(list)
        for module, tensor in micro.owners.tolist():
            self.owned[module].append(tensor)
        self.shards = {index: Shard(index, tensor, FP32 if self.param and tensor.trainable else tensor.itemsize,
                                    setup.data_parallel_size)
                       for index, tensor in enumerate(self.tensors) if not tensor.buffer}
        self._refuse()

    @cached_property
    def _changes(self) -> list[int]:
        return rank_changes(self.shards.values())

    def rank_key(self, rank: int) -> int:
        """The number of ranks until this one whose shards have other numbers of rows than those of the rank before."""
        return bisect_right(self._changes, rank)

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[RankPeak]:
        """Numbers that decrease with the rank: the first rank holds the most. They are not bytes."""
        return [RankPeak(-rank, -rank) for rank in ranks]

    def rank(self, rank: int) -> EventList:
        """The events of a rank: start-up and three optimizer steps."""
        micro, count, length = self.micro, self.setup.micro_steps, len(self.micro.events)
        tape = Tape(first=STEPS * count * len(micro.events.buffers))
        units = self._units(tape)
        local = {index: shard.of_rank(rank) for index, shard in self.shards.items()}
        optimizer = self.setup.optimizer()
        self._start_up(tape)
        optimizer.construct(tape, [local[index] for group in self.setup.groups() for index in group])
        ends = [len(tape)]
        for step in range(STEPS):
            for index in range(count):
                reduce = self.keys["sync_each_batch"] or index == count - 1
                self._micro_step(tape, units, step * count + index, reduce=reduce)
            tape.position, tape.moment = (step + 1) * count * length, Moment.OPTIMIZER_STEP
            begin = len(tape)
            self._optimizer_step(tape, units, optimizer, local)
            if step:
                tape.drop_once(begin)
            ends.append(len(tape))
        return Vocabulary(micro).whole(tape, STEPS * count, ends)

    def _units(self, tape: Tape) -> Units:
        units = []
        for module, tensors in sorted(self.owned.items()):
            shards = [self.shards[index] for index in tensors if index in self.shards]
            if shards:
                reshards = fsdp_keys.reshards(self.keys, "" if module == ROOT else shards[0].tensor.module)
                units.append(Unit(module, shards, reshards))
        return Units(tape, units, self.setup.data_parallel_size,
                     None if self.reduce == self.param else self.reduce, self.setup.gpu)

    def _start_up(self, tape: Tape) -> None:
        """Moves each unit to the device (``_move_states_to_device``), then shards it (``_init_sharded_param``)."""
        for tensors in self.owned.values():
            whole = []
            for index in tensors:
                tensor, shard = self.tensors[index], self.shards.get(index)
                size = tensor.bytes if shard is None else tensor.numel * shard.itemsize
                buffer = tape.allocate(size, Factor.PARAMETERS, "to", module=tensor.module)
                if shard is not None:
                    whole.append((shard, buffer))
            for shard, _ in whole:
                tape.allocate(shard.numel * shard.itemsize, Factor.PARAMETERS, "fsdp2::shard",
                              module=shard.tensor.module)
            for _, buffer in whole:
                tape.free(buffer)

    def _micro_step(self, tape: Tape, units: Units, index: int, *, reduce: bool) -> None:
        micro = self.micro
        base, first_buffer = index * len(micro.events), index * len(micro.events.buffers)
        ready = micro.ready.tolist()
        tape.moment = Moment.FORWARD
        for position, mark, number in self.marks:
            tape.position = base + position
            if mark == Mark.READY:
                _, parameter, gradient = ready[number]
                units.ready(parameter, first_buffer + gradient)
            elif mark == Mark.AFTER_BACKWARD and number == ROOT:
                units.end_backward(reduce=reduce)
            elif number not in units.by_number:  # the module has no parameters of its own
                continue
            elif mark == Mark.ENTER:
                units.enter(units.by_number[number])
            elif mark == Mark.LEAVE:
                units.leave(units.by_number[number])
            elif mark == Mark.BEFORE_BACKWARD:
                tape.moment = Moment.BACKWARD
                units.before_backward(units.by_number[number])
            elif mark == Mark.AFTER_BACKWARD:
                units.after_backward(units.by_number[number], reduce=reduce)

    def _optimizer_step(self, tape: Tape, units: Units, optimizer: Steps, local: Mapping[int, Parameter]) -> None:
        reached = set(self.micro.ready[:, 1].tolist())
        if self.setup.max_grad_norm:
            torch_loop.clip(tape, [local[index] for index in sorted(reached)])
        for group in self.setup.groups():
            optimizer.step(tape, [local[index] for index in group if index in reached], decay=self.setup.decays(group))
        reduced = [units.unit_of[index] for group in self.setup.groups() for index in group if index in reached]
        for unit in reversed(dict.fromkeys(reversed(reduced))):  # a unit's buffer is freed with its last gradient
            units.release_gradient(unit)

    def _refuse(self) -> None:
        """Rejects units with trainable parameters of several dtypes (``_init_mp_dtypes``), and narrowing reductions."""
        for tensors in self.owned.values():
            shards = [self.shards[index] for index in tensors if index in self.shards and self.tensors[index].trainable]
            other = next((shard for shard in shards if shard.itemsize != shards[0].itemsize), None)
            if other is not None:
                raise InputError(f"engine fsdp2: {shards[0].tensor.name} and {other.tensor.name} train in different "
                                 "dtypes in one unit, and FSDP2 stops at that: give fsdp param_dtype bf16")
            if self.reduce and any(shard.tensor.itemsize > self.reduce for shard in shards):
                raise InputError("fsdp: reduce_dtype bf16 of fp32 gradients is not modelled yet: leave it out")
