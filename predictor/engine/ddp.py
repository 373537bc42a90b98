"""DistributedDataParallel: the plain loop with every gradient copied into buckets that are reduced; all ranks alike.

torch 2.11: torch/nn/parallel/distributed.py (``DistributedDataParallel``); torch/csrc/distributed/c10d/reducer.cpp
(``initialize_buckets``, ``mark_variable_ready_dense``, ``rebuild_buckets``, ``compute_bucket_assignment_by_size``,
``verify_params_across_processes``) and comm.cpp (``broadcast_coalesced``). Collectives of ProcessGroupNCCL keep their
tensors themselves and record no streams.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from predictor.common.errors import InputError
from predictor.engine import torch_loop
from predictor.engine.common import AlikeRanks, to_device
from predictor.engine.compose import Stretch, Tape, Vocabulary
from predictor.engine.setup import Setup
from predictor.events.events import Buffers, Factor, Moment
from predictor.events.micro_step import MicroStep
from predictor.events.model_facts import Parameter

MIB = 1 << 20
FIRST_BUCKET_BYTES, BUCKET_BYTES = MIB, 25 * MIB
"""Limits of the first and the other buckets (reducer.hpp, kDefaultFirstBucketBytes and kDefaultBucketBytesCap)."""
BROADCAST_BYTES = 250 * MIB
"""``broadcast_bucket_size``."""
IN_FLIGHT = 2
"""Broadcasts under way at once."""
INT32, INT64 = 4, 8


class Ddp(AlikeRanks):
    """The run of any rank."""

    takes_gradients: bool

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        tensors = setup.facts.parameters
        _refuse_unused(micro, tensors)
        self.takes_gradients = setup.ddp["gradient_as_bucket_view"]
        _check_sharded(tensors)
        self._accumulates = setup.micro_steps > 1
        self._trainable = [tensor for tensor in tensors if tensor.trainable]
        self._model_buffers = [tensor for tensor in tensors if tensor.buffer]
        vocabulary, start = Vocabulary(micro), Tape()
        to_device(start, setup)
        _verify(start, self._trainable, setup.data_parallel_size)
        _broadcast(start, tensors)
        # with the whole gradient in one bucket at first; the limits hold once the order of arrival is known
        self._first = [self._bucket(start.allocate, same) for same in reversed(assign(self._trainable, [math.inf]))]
        arrival = [tensors[parameter] for parameter in micro.ready[:, 1].tolist()]
        self._rebuilt = [self._bucket(start.declare, part) for part in assign(arrival, limits(setup.ddp))]
        step, second = torch_loop.step(micro, setup, vocabulary, self), None
        if not self._accumulates:
            tape = Tape(first=len(micro.events.buffers) * setup.micro_steps + len(step.buffers))
            self._rebuild(tape)
            step = replace(step, buffers=Buffers.concatenate([step.buffers, vocabulary.buffers(tape.attributes)]))
            second = tape.columns()[:3]
        self.events = vocabulary.assemble(
            Stretch(start.columns()[:3], 0, vocabulary.buffers(start.attributes)), step, second)

    def begin(self, tape: Tape, index: int) -> None:
        """``_pre_forward``: buckets are made anew before the second backward's forward; buffers are broadcast."""
        if index == 1:
            with tape.first_step_only():
                self._rebuild(tape)
        _broadcast(tape, self._model_buffers)

    def _bucket(self, make: Callable[..., int], tensors: Sequence[Parameter]) -> int:
        factor = Factor.GRADIENTS if self.takes_gradients else Factor.COMMUNICATION
        return make(sum(tensor.bytes for tensor in tensors), factor, "ddp::bucket")

    def _rebuild(self, tape: Tape) -> None:
        """``rebuild_buckets``: rank 0's assignment is broadcast, then buckets take the place of the first ones.

        Accumulated gradients that lie in the first buckets move one new bucket at a time, so those die last.
        """
        tape.moment = Moment.FORWARD
        order = tape.allocate(INT32 * (len(self._trainable) + 1), Factor.COMMUNICATION, "ddp::sync_bucket_indices")
        counts = tape.allocate(INT32 * len(self._rebuilt), Factor.COMMUNICATION, "ddp::sync_bucket_indices")
        tape.free(counts)
        tape.free(order)
        stay = self.takes_gradients and self._accumulates
        for bucket in () if stay else self._first:
            tape.free(~bucket)
        for bucket in self._rebuilt:
            tape.again(~bucket)
        for bucket in self._first if stay else ():
            tape.free(~bucket)


def limits(ddp: Mapping[str, Any]) -> list[float]:
    """Bytes at which a bucket is full: of the first, then of all others. Who gives a limit gives it for all."""
    if ddp["bucket_cap_mb"] is None:
        return [FIRST_BUCKET_BYTES, BUCKET_BYTES]
    return [int(ddp["bucket_cap_mb"] * MIB)]


def assign(tensors: Iterable[Parameter], limits: Sequence[float]) -> list[list[Parameter]]:
    """Tensors in buckets of one dtype (an item size stands for it): full ones as they fill, then the rest."""
    done: list[list[Parameter]] = []
    filling: dict[int, list[Parameter]] = {}
    filled: dict[int, int] = {}
    for tensor in tensors:
        bucket = filling.setdefault(tensor.itemsize, [])
        bucket.append(tensor)
        number = filled.get(tensor.itemsize, 0)
        if sum(one.bytes for one in bucket) >= limits[min(number, len(limits) - 1)]:
            done.append(filling.pop(tensor.itemsize))
            filled[tensor.itemsize] = number + 1
    return done + list(filling.values())


def _broadcast(tape: Tape, tensors: Sequence[Parameter]) -> None:
    """``broadcast_coalesced``: tensors are flattened, bucket by bucket; a single one is viewed."""
    place = {id(tensor): number for number, tensor in enumerate(tensors)}
    flying: deque[int | None] = deque()

    def finish() -> None:
        flat = flying.popleft()
        if flat is not None:
            tape.free(flat)

    for bucket in sorted(assign(tensors, [BROADCAST_BYTES]), key=lambda bucket: place[id(bucket[0])]):
        if len(flying) == IN_FLIGHT:
            finish()
        size = sum(tensor.bytes for tensor in bucket)
        flying.append(tape.allocate(size, Factor.COMMUNICATION, "ddp::broadcast") if len(bucket) > 1 else None)
    while flying:
        finish()


def _verify(tape: Tape, tensors: Sequence[Parameter], ranks: int) -> None:
    """``verify_params_across_processes``: the ranks' numbers of parameters, then sizes and strides of rank 0's."""
    def allocate(size: int) -> int:
        return tape.allocate(size, Factor.COMMUNICATION, "ddp::verify_params")

    counts = [allocate(INT64) for _ in range(1 + ranks)]
    for size in (INT64 * ranks, INT64 * 2 * sum(len(tensor.shape) for tensor in tensors)):
        tape.free(allocate(size))
    for buffer in [*counts[1:], counts[0]]:
        tape.free(buffer)


def _refuse_unused(micro: MicroStep, tensors: Sequence[Parameter]) -> None:
    """A parameter whose gradient never comes stops DDP in the second step."""
    arrived = set(micro.ready[:, 1].tolist())
    unused = [tensor.name for index, tensor in enumerate(tensors) if tensor.trainable and index not in arrived]
    if unused:
        raise InputError(f"engine ddp: {len(unused)} trainable parameters get no gradient, and DDP stops at that "
                         f"(the first is {unused[0]}): add them to frozen, whose gradients find_unused_parameters "
                         "would make, which is not modelled yet")


def _check_sharded(tensors: Sequence[Parameter]) -> None:
    """DDP makes plain parameters of what tensor parallelism sharded, all of which train, module by module: of one that
    two modules share the second stays a DTensor (torch/distributed/tensor/parallel/ddp.py, ``_localize_dtensor``)."""
    sharded = [tensor for tensor in tensors if tensor.sharded]
    frozen = next((tensor.name for tensor in sharded if not tensor.trainable), None)
    if frozen:
        raise InputError(f"engine ddp with tensor_parallel_size: PyTorch trains every sharded weight, {frozen} too, "
                         "which is frozen: use recipe finetune or full, or engine torch")
    shared = next((tensor.name for tensor in sharded if tensor.is_embedding), None)  # sharded only with its head
    if shared:
        raise InputError(f"engine ddp with tensor_parallel_size: {shared} is tied to the head, and PyTorch stops at "
                         "sharded weights that two modules share: use engine torch")
