"""FSDP1: each unit's parameters are one flat parameter, which its ranks share.

PyTorch 2.11, torch/distributed/fsdp (``FullyShardedDataParallel``), and accelerate 1.15, accelerator.py
(``prepare_model``), which makes flat parameters fp32 under mixed precision. The micro-step must have been traced with
FSDP1's wrappers (``predictor.trace.fsdp1_hooks``): flat gradients are among its buffers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from predictor.common.errors import InputError
from predictor.engine.compose import RankPeak, Vocabulary
from predictor.engine.fsdp1_clip import clip
from predictor.engine.fsdp1_ranks import Ranks
from predictor.engine.fsdp1_units import ROOT, UNSHARD_STREAM, Flat, Strategy, Unit, Units
from predictor.engine.optimizer import Steps
from predictor.engine.setup import BF16, FP32, STEPS, Setup
from predictor.engine.tape import Tape
from predictor.events.events import EventList, EventType, Factor, Moment
from predictor.events.micro_step import Mark, MicroStep
from predictor.events.model_facts import Parameter
from predictor.workload import fsdp1_keys
from predictor.workload.fsdp1_keys import ALIGNMENT_BYTES, flattened

ITEMSIZES = {"bf16": BF16, "fp32": FP32}
SUM = "aten::add"


class Fsdp1:
    """A run under FSDP1."""

    depends_on_capacity = False

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        assert setup.fsdp1 is not None  # set for this engine
        assert micro.marks is not None and micro.owners is not None  # traced with FSDP1's wrappers
        self.micro, self.setup, self.keys = _with_streams(_with_sums(micro)), setup, setup.fsdp1
        assert self.micro.marks is not None
        self.marks: list[list[int]] = [mark for mark in self.micro.marks.tolist() if mark[1] != Mark.AWAY]
        self.tensors = setup.facts.parameters
        self.owned: dict[int, list[int]] = defaultdict(list)
        for module, tensor in micro.owners.tolist():
            self.owned[module].append(tensor)
        self.flats = {module: self._flat(parameters) for module, indices in self.owned.items()
                      if (parameters := sorted(index for index in indices if not self.tensors[index].buffer))}
        self.shards: dict[int, int] = {}
        strategy = self.keys["sharding_strategy"]
        self.strategy = Strategy(strategy in fsdp1_keys.RESHARDING, strategy in fsdp1_keys.HYBRIDS,
                                 self.keys["backward_prefetch"], self.keys["limit_all_gathers"],
                                 self.keys["cpu_offload"])

    def _flat(self, indices: list[int]) -> Flat:
        """The flat parameter of the parameters with these indices."""
        setup, keys = self.setup, self.keys
        tensors = {index: self.tensors[index] for index in indices}
        first = self.tensors[indices[0]]
        other = next((tensor for tensor in tensors.values() if tensor.itemsize != first.itemsize), None)
        if other is not None:
            raise InputError(f"engine fsdp1: {first.name} and {other.name} have different dtypes in one unit, and "
                             "FSDP1 stops at that: load them in one dtype")
        dtypes = fsdp1_keys.precision(keys, setup.mixed_precision)
        computed = ITEMSIZES[dtypes["param"]] if dtypes["param"] else first.itemsize
        reduced = ITEMSIZES[dtypes["reduce"]] if dtypes["reduce"] else first.itemsize
        widened = setup.mixed_precision != "none" and any(tensor.trainable for tensor in tensors.values())
        degree = fsdp1_keys.sharding_degree(keys, setup.data_parallel_size)
        alignment = ALIGNMENT_BYTES // computed if keys["use_orig_params"] else 0
        return Flat(first.module, tensors,
                    tuple(flattened([tensor.numel for tensor in tensors.values()], alignment, degree)), degree,
                    first.itemsize, FP32 if widened else first.itemsize, computed, reduced, keys["use_orig_params"])

    def _local(self, rank: int) -> dict[int, Parameter]:
        return {index: tensor for module in sorted(self.flats)
                for index, tensor in self.flats[module].of_rank(rank).items() if tensor.trainable and tensor.numel}

    @cached_property
    def _ranks(self) -> Ranks:
        return Ranks([self.flats[module] for module in sorted(self.flats)])

    def rank_key(self, rank: int) -> bytes:
        """Tells the elements of each trained parameter in the rank's shards."""
        return self._ranks.key(rank)

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[RankPeak]:
        """The elements that a rank's optimizer updates, which is all that differs. They are not bytes."""
        return [RankPeak(count, count) for count in map(self._ranks.elements, ranks)]

    def rank(self, rank: int) -> EventList:
        """The events of a rank: start-up and three optimizer steps."""
        micro, count, length = self.micro, self.setup.micro_steps, len(self.micro.events)
        tape = Tape(first=STEPS * count * len(micro.events.buffers))
        local = self._local(rank)
        units = Units(tape, [Unit(module, flat, flat.parts_of(rank)) for module, flat in sorted(self.flats.items())],
                      self.strategy)
        groups = self._groups(local)
        optimizer = self.setup.optimizer()
        buffers = self._start_up(tape, units)
        if not self.strategy.offloads:
            optimizer.construct(tape, [local[index] for group, _ in groups for index in group])
        ends = [len(tape)]
        for step in range(STEPS):
            for index in range(count):
                reduce = self.keys["sync_each_batch"] or index == count - 1
                self._micro_step(tape, units, step * count + index, buffers, reduce=reduce)
            tape.position, tape.moment = (step + 1) * count * length, Moment.OPTIMIZER_STEP
            begin = len(tape)
            self._optimizer_step(tape, units, optimizer, local, groups)
            if step:
                tape.drop_once(begin)
            ends.append(len(tape))
        return Vocabulary(micro).whole(tape, STEPS * count, ends)

    def _groups(self, local: Mapping[int, Parameter]) -> list[tuple[list[int], bool]]:
        """The optimizer's groups, each with whether weight decay applies; flat parameters all decay."""
        if not self.keys["use_orig_params"]:
            return [(list(local), True)]
        return [([index for index in group if index in local], self.setup.decays(group))
                for group in self.setup.groups()]

    def _start_up(self, tape: Tape, units: Units) -> dict[int, int]:
        """Wraps each unit, the root last (``_init_param_handle_from_module``); returns the buffers of buffers."""
        buffers: dict[int, int] = {}
        for module, tensors in self.owned.items():
            moved = {index: tape.allocate(self.tensors[index].bytes, Factor.PARAMETERS, "to",
                                          module=self.tensors[index].module) for index in tensors}
            buffers |= {index: buffer for index, buffer in moved.items() if self.tensors[index].buffer}
            if module in self.flats:
                self._flatten(tape, units.by_number[module], [moved[index] for index in self.flats[module].tensors])
        for unit in units.by_number.values():
            flat = unit.flat
            if flat.stored != flat.loaded and not self.strategy.offloads:
                shard = tape.allocate(flat.shard * flat.stored, Factor.PARAMETERS, "fsdp1::upcast", module=flat.module)
                if flat.original:
                    unit.viewed = self.shards[unit.number]
                else:
                    tape.free(self.shards[unit.number])
                self.shards[unit.number] = shard
        return buffers

    def _flatten(self, tape: Tape, unit: Unit, parameters: Sequence[int]) -> None:
        """Copies the unit's parameters into one, of which the rank keeps its shard (``FlatParamHandle``)."""
        flat = unit.flat

        def allocate(elements: int, operator: str) -> int:
            return tape.allocate(elements * flat.loaded, Factor.PARAMETERS, operator, module=flat.module)

        paddings = []
        for numel, padding in flat.parts:
            if padding:
                ones = allocate(numel, "fsdp1::padding")
                paddings.append(allocate(numel, "fsdp1::padding"))
                tape.free(ones)
        whole = allocate(flat.numel, "fsdp1::flatten")
        for buffer in paddings:
            tape.free(buffer)
        shard = allocate(flat.shard, "fsdp1::shard")
        tape.free(whole)
        for buffer in parameters:
            tape.free(buffer)
        if self.strategy.offloads:
            tape.free(shard)
        self.shards[unit.number] = shard

    def _first_forward(self, tape: Tape, units: Units, buffers: dict[int, int]) -> None:
        """``_lazy_init``: casts buffers, and allocates and frees what each unit gathers into."""
        dtype = fsdp1_keys.precision(self.keys, self.setup.mixed_precision)["buffer"]
        width = ITEMSIZES[dtype] if dtype else None
        for index, buffer in sorted(buffers.items()):
            tensor = self.tensors[index]
            if width and tensor.itemsize in ITEMSIZES.values() and tensor.itemsize != width:  # integers have 8 bytes
                tape.allocate(tensor.numel * width, Factor.PARAMETERS, "fsdp1::cast", module=tensor.module)
                tape.free(buffer)
        for unit in units.by_number.values():
            flat = unit.flat
            sizes = [flat.shard * flat.computed] if flat.casts else []
            sizes.append(flat.shard * flat.degree * flat.computed)
            sizes += [flat.shard * flat.degree * flat.stored] if flat.casts else []
            for size in sizes:
                tape.free(tape.allocate(size, Factor.COMMUNICATION, "fsdp1::init", module=flat.module))

    def _micro_step(self, tape: Tape, units: Units, index: int, buffers: dict[int, int], *, reduce: bool) -> None:
        micro = self.micro
        base, first_buffer = index * len(micro.events), index * len(micro.events.buffers)
        ready = micro.ready.tolist()
        tape.moment = Moment.FORWARD
        for position, mark, number in self.marks:
            tape.position = base + position
            if mark == Mark.READY:
                _, parameter, gradient = ready[number]
                units.ready(units.unit_of[parameter], first_buffer + gradient, reduce=reduce)
            elif mark == Mark.SHARE:
                tape.record_stream(first_buffer + number, UNSHARD_STREAM)
            elif mark == Mark.AFTER_BACKWARD and number == ROOT:
                units.end_backward(reduce=reduce)
            else:
                if mark == Mark.ENTER and number == ROOT:
                    self._begin_forward(tape, units, index, buffers)
                if mark == Mark.BEFORE_BACKWARD:
                    tape.moment = Moment.BACKWARD
                if number in units.by_number:  # the module has parameters of its own
                    units.at_hook(Mark(mark), units.by_number[number], reduce=reduce)

    def _begin_forward(self, tape: Tape, units: Units, index: int, buffers: dict[int, int]) -> None:
        """``_root_pre_forward``."""
        if index == 0:
            self._first_forward(tape, units, buffers)
        units.begin_forward(step=index % self.setup.micro_steps == 0)

    def _optimizer_step(self, tape: Tape, units: Units, optimizer: Steps, local: Mapping[int, Parameter],
                        groups: Sequence[tuple[list[int], bool]]) -> None:
        """Clips gradients and updates the parameters of the units that backward has reached."""
        units_reached = {units.unit_of[index] for index in self.micro.ready[:, 1].tolist()}
        reached = {index for unit in units_reached for index in unit.flat.tensors}
        if self.setup.max_grad_norm:
            clip(tape, [tensor for index, tensor in local.items() if index in reached], self.setup.gpu,
                 offloads=self.strategy.offloads)
        if not self.strategy.offloads:
            for group, decay in groups:
                optimizer.step(tape, [local[index] for index in group if index in reached], decay=decay)
        if not self.keys["use_orig_params"]:
            for unit in units.by_number.values():
                units.release_gradient(unit)


def _with_sums(micro: MicroStep) -> MicroStep:
    """The micro-step with sums of a parameter's gradients on the stream on which its views were made.

    A parameter that is used twice, such as tied embeddings, has two gradients. Autograd adds them on the stream of the
    function that takes the sum, and records both on it (torch 2.11, csrc/autograd/input_buffer.cpp). The trace marks
    only the sum, as read by that stream. Any sum so marked counts as one of two gradients, also one of activations that
    would reach a parameter as its gradient unchanged, which no compared model has.
    """
    assert micro.marks is not None  # traced with FSDP1's wrappers
    events, buffers = micro.events, micro.events.buffers
    marks: list[tuple[int, int, int]] = []
    for position, mark, buffer in micro.marks.tolist():
        if mark != Mark.SHARE or events.names[buffers.operator[buffer]] != SUM:
            marks.append((position, mark, buffer))
            continue
        made, = np.flatnonzero((events.buffer == buffer) & (events.kind == EventType.ALLOCATE))
        freed = events.buffer[made + 1:position][events.kind[made + 1:position] == EventType.FREE]
        marks.append((position, Mark.AWAY, buffer))
        marks += [(int(made) + 1, Mark.SHARE, addend) for addend in freed.tolist()
                  if buffers.size[addend] == buffers.size[buffer]]
    marks.sort(key=lambda mark: mark[0])
    return replace(micro, marks=np.array(marks, dtype=micro.marks.dtype).reshape(-1, 3))


def _with_streams(micro: MicroStep) -> MicroStep:
    """The micro-step with flat gradients on the stream on which their parameters are gathered.

    The views of a flat parameter are made on that stream, and autograd runs a function's backward on the stream of its
    forward (torch/csrc/autograd/engine.cpp).
    """
    assert micro.marks is not None  # traced with FSDP1's wrappers
    buffers = micro.events.buffers
    stream = buffers.stream.copy()
    stream[micro.marks[micro.marks[:, 1] == Mark.AWAY, 2]] = UNSHARD_STREAM
    return replace(micro, events=replace(micro.events, buffers=replace(buffers, stream=stream)))
