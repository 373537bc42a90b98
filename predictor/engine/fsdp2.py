"""FSDP2: every unit's parameters, gradients and optimizer states are sharded on their first dimension.

PyTorch 2.11, torch/distributed/fsdp/_fully_shard (``fully_shard``). ``fully_shard`` brings each unit to the device and
shards it before the next one. Parts are padded to the first rank's, which so holds the most. The step that it is
composed with must have been traced as wrapped (``predictor.trace.fsdp2_hooks``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from predictor.common.errors import InputError
from predictor.engine import torch_loop
from predictor.engine.compose import RankPeak, Tape, Vocabulary
from predictor.engine.fsdp2_units import ROOT, Shard, Unit, Units
from predictor.engine.optimizer import Steps
from predictor.engine.setup import BF16, FP32, STEPS, Setup
from predictor.events.events import EventList, Factor, Moment
from predictor.events.micro_step import Mark, MicroStep
from predictor.events.model_facts import Parameter
from predictor.workload import fsdp_keys

ITEMSIZES = {"bf16": BF16, "fp32": FP32, None: None}


class Fsdp2:
    """A run under FSDP2."""

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        self.micro, self.setup, self.keys = micro, setup, setup.fsdp
        self.tensors = setup.facts.parameters
        self.param, self.reduce = (ITEMSIZES[self.keys[name]] for name in ("param_dtype", "reduce_dtype"))
        self.owned: dict[int, list[int]] = defaultdict(list)
        for module, tensor in micro.owners.tolist():
            self.owned[module].append(tensor)
        self.shards = {index: Shard(index, tensor, FP32 if self.param and tensor.trainable else tensor.itemsize,
                                    setup.data_parallel_size)
                       for index, tensor in enumerate(self.tensors) if not tensor.buffer}
        self._refuse()

    def part(self, rank: int) -> tuple[int, ...]:
        """Rows of every parameter that its optimizer sees."""
        return tuple(shard.of_rank(rank).shape[0] for shard in self.shards.values())

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[RankPeak]:
        """Nothing to choose among but that the first rank holds the most."""
        return [RankPeak(-rank, -rank) for rank in ranks]

    def rank(self, rank: int) -> EventList:
        """Start-up and three steps."""
        micro, count, length = self.micro, self.setup.micro_steps, len(self.micro.events)
        tape = Tape(first=STEPS * count * len(micro.events.buffers))
        units = self._units(tape)
        local = {index: shard.of_rank(rank) for index, shard in self.shards.items()}
        optimizer = self.setup.optimizer()
        self._start_up(tape)
        optimizer.construct(tape, [local[index] for group in self.setup.groups() for index in group])
        ends = [len(tape.rows)]
        for step in range(STEPS):
            for index in range(count):
                reduce = self.keys["sync_each_batch"] or index == count - 1
                self._micro_step(tape, units, step * count + index, reduce=reduce)
            tape.position, tape.moment = (step + 1) * count * length, Moment.OPTIMIZER_STEP
            said = len(tape.rows)
            self._optimizer_step(tape, units, optimizer, local)
            if step:
                tape.drop_once(said)
            ends.append(len(tape.rows))
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
        """``_move_states_to_device``, then ``_init_sharded_param`` of each parameter."""
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
        for position, kind, what in micro.marks.tolist():
            tape.position = base + position
            if kind == Mark.READY:
                _, parameter, gradient = ready[what]
                units.ready(parameter, first_buffer + gradient)
            elif kind == Mark.AFTER_BACKWARD and what == ROOT:
                units.end_backward(reduce=reduce)
            elif what not in units.by_number:  # it has no parameters
                continue
            elif kind == Mark.ENTER:
                units.enter(units.by_number[what])
            elif kind == Mark.LEAVE:
                units.leave(units.by_number[what])
            elif kind == Mark.BEFORE_BACKWARD:
                tape.moment = Moment.BACKWARD
                units.before_backward(units.by_number[what])
            elif kind == Mark.AFTER_BACKWARD:
                units.after_backward(units.by_number[what], reduce=reduce)

    def _optimizer_step(self, tape: Tape, units: Units, optimizer: Steps, local: Mapping[int, Parameter]) -> None:
        reached = set(self.micro.ready[:, 1].tolist())
        if self.setup.max_grad_norm:
            torch_loop.clip(tape, [local[index] for index in sorted(reached)])
        for group in self.setup.groups():
            optimizer.step(tape, [local[index] for index in group if index in reached], decay=self.setup.decays(group))
        reduced = [units.unit_of[index] for group in self.setup.groups() for index in group if index in reached]
        for unit in reversed(dict.fromkeys(reversed(reduced))):  # each goes with its last gradient
            units.release_gradient(unit)

    def _refuse(self) -> None:
        """Parameters that train must have one dtype in each unit (``_init_mp_dtypes``); reductions do not narrow."""
        for tensors in self.owned.values():
            shards = [self.shards[index] for index in tensors if index in self.shards and self.tensors[index].trainable]
            other = next((shard for shard in shards if shard.itemsize != shards[0].itemsize), None)
            if other is not None:
                raise InputError(f"engine fsdp2: {shards[0].tensor.name} and {other.tensor.name} train in different "
                                 "dtypes in one unit, and FSDP2 stops at that: give fsdp param_dtype bf16")
            if self.reduce and any(shard.tensor.itemsize > self.reduce for shard in shards):
                raise InputError("fsdp: reduce_dtype bf16 of fp32 gradients is not modelled yet: leave it out")
