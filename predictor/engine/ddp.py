"""DistributedDataParallel: the plain loop, with gradients copied into buckets that are all-reduced. Ranks are equal.

torch 2.11: torch/nn/parallel/distributed.py (``DistributedDataParallel``); torch/csrc/distributed/c10d/reducer.cpp
(``initialize_buckets``, ``initialize_local_used_map``, ``mark_variable_ready_dense``, ``rebuild_buckets``,
``compute_bucket_assignment_by_size``, ``verify_params_across_processes``) and comm.cpp (``broadcast_coalesced``).
Collectives of ProcessGroupNCCL hold references to their tensors and record no streams.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from predictor.common.errors import InputError
from predictor.engine import torch_loop
from predictor.engine.common import AlikeRanks, to_device
from predictor.engine.compose import Stretch, Vocabulary
from predictor.engine.setup import Setup
from predictor.engine.tape import Tape
from predictor.events.events import Buffers, Factor, Moment
from predictor.events.micro_step import MicroStep
from predictor.events.model_facts import Parameter

MIB = 1 << 20
FIRST_BUCKET_BYTES, BUCKET_BYTES = MIB, 25 * MIB
"""Size limits of the first and the other buckets (reducer.hpp, kDefaultFirstBucketBytes, kDefaultBucketBytesCap)."""
BROADCAST_BYTES = 250 * MIB
"""Size limit of a broadcast's bucket (``broadcast_bucket_size``)."""
IN_FLIGHT = 2
"""Most broadcasts that run at the same time."""
INT32, INT64 = 4, 8


class Ddp(AlikeRanks):
    """A run under DDP."""

    takes_gradients: bool

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        assert setup.ddp is not None  # set for this engine
        tensors = setup.facts.parameters
        _refuse_unused(micro, tensors)
        self.takes_gradients = setup.ddp["gradient_as_bucket_view"]
        _check_sharded(tensors)
        self._accumulates = setup.micro_steps > 1
        self._gradients_live = self._accumulates or setup.zero_grad == "before_backward"
        """Whether gradients exist when the buckets are rebuilt."""
        self._trainable = [tensor for tensor in tensors if tensor.trainable]
        self._model_buffers = [tensor for tensor in tensors if tensor.buffer]
        vocabulary, start = Vocabulary(micro), Tape()
        to_device(start, setup)
        _verify(start, self._trainable, setup.data_parallel_size)
        _broadcast(start, tensors)
        # At first one bucket holds all gradients. The limits apply once the order in which gradients arrive is known.
        # To find unused parameters, the limits apply from the start, and the buckets stay.
        self._stays = setup.ddp.get("find_unused_parameters", False)
        at_first = limits(setup.ddp) if self._stays else [math.inf]
        self._first = [self._bucket(start.allocate, same) for same in reversed(assign(self._trainable, at_first))]
        if self._stays:
            start.allocate(INT32 * len(self._trainable), Factor.COMMUNICATION, "ddp::local_used_map")
        arrival = [tensors[parameter] for parameter in micro.ready[:, 1].tolist()]
        self._rebuilt = [] if self._stays else [
            self._bucket(start.declare, part) for part in assign(arrival, limits(setup.ddp))]
        step, second = torch_loop.step(micro, setup, vocabulary, self), None
        if not self._accumulates and not self._stays:
            tape = Tape(first=len(micro.events.buffers) * setup.micro_steps + len(step.buffers))
            self._rebuild(tape)
            step = replace(step, buffers=Buffers.concatenate([step.buffers, vocabulary.buffers(tape.buffers)]))
            second = tape.columns()[:3]
        self.events = vocabulary.assemble(
            Stretch(start.columns()[:3], 0, vocabulary.buffers(start.buffers)), step, second)

    def begin(self, tape: Tape, index: int) -> None:
        """``_pre_forward``: rebuilds the buckets in the second forward, and broadcasts the model's buffers."""
        if index == 1 and not self._stays:
            with tape.first_step_only():
                self._rebuild(tape)
        _broadcast(tape, self._model_buffers)

    def _bucket(self, make: Callable[..., int], tensors: Sequence[Parameter]) -> int:
        factor = Factor.GRADIENTS if self.takes_gradients else Factor.COMMUNICATION
        return make(sum(tensor.bytes for tensor in tensors), factor, "ddp::bucket")

    def _rebuild(self, tape: Tape) -> None:
        """``rebuild_buckets``: broadcasts rank 0's assignment, then replaces the first buckets.

        Gradients that exist and are views of the first buckets are copied into one new bucket after another. Then the
        first buckets are freed last.
        """
        tape.moment = Moment.FORWARD
        order = tape.allocate(INT32 * (len(self._trainable) + 1), Factor.COMMUNICATION, "ddp::sync_bucket_indices")
        counts = tape.allocate(INT32 * len(self._rebuilt), Factor.COMMUNICATION, "ddp::sync_bucket_indices")
        tape.free(counts)
        tape.free(order)
        stay = self.takes_gradients and self._gradients_live
        for bucket in () if stay else self._first:
            tape.free(~bucket)
        for bucket in self._rebuilt:
            tape.allocate_declared(~bucket)
        for bucket in self._first if stay else ():
            tape.free(~bucket)


def limits(ddp: Mapping[str, Any]) -> list[float]:
    """Bytes at which a bucket is full: of the first bucket, then of all others. ``bucket_cap_mb`` applies to all."""
    if ddp["bucket_cap_mb"] is None:
        return [FIRST_BUCKET_BYTES, BUCKET_BYTES]
    return [int(ddp["bucket_cap_mb"] * MIB)]


def assign(tensors: Iterable[Parameter], limits: Sequence[float]) -> list[list[Parameter]]:
    """Assigns tensors to buckets of one dtype each; the item size stands for the dtype.

    Returns:
        The full buckets in the order in which they fill, then the others.
    """
    done: list[list[Parameter]] = []
    filling: dict[int, list[Parameter]] = {}
    held: Counter[int] = Counter()
    filled: Counter[int] = Counter()
    for tensor in tensors:
        kind = tensor.itemsize
        filling.setdefault(kind, []).append(tensor)
        held[kind] += tensor.bytes
        if held[kind] >= limits[min(filled[kind], len(limits) - 1)]:
            done.append(filling.pop(kind))
            held[kind], filled[kind] = 0, filled[kind] + 1
    return done + list(filling.values())


def _broadcast(tape: Tape, tensors: Sequence[Parameter]) -> None:
    """``broadcast_coalesced``: flattens tensors bucket by bucket; a single tensor is viewed, not copied."""
    place = {id(tensor): number for number, tensor in enumerate(tensors)}
    in_flight: deque[int | None] = deque()

    def finish() -> None:
        flat = in_flight.popleft()
        if flat is not None:
            tape.free(flat)

    for bucket in sorted(assign(tensors, [BROADCAST_BYTES]), key=lambda bucket: place[id(bucket[0])]):
        if len(in_flight) == IN_FLIGHT:
            finish()
        size = sum(tensor.bytes for tensor in bucket)
        in_flight.append(tape.allocate(size, Factor.COMMUNICATION, "ddp::broadcast") if len(bucket) > 1 else None)
    while in_flight:
        finish()


def _verify(tape: Tape, tensors: Sequence[Parameter], ranks: int) -> None:
    """``verify_params_across_processes``: compares the number of parameters, then sizes and strides, with rank 0."""
    def allocate(size: int) -> int:
        return tape.allocate(size, Factor.COMMUNICATION, "ddp::verify_params")

    counts = [allocate(INT64) for _ in range(1 + ranks)]
    for size in (INT64 * ranks, INT64 * 2 * sum(len(tensor.shape) for tensor in tensors)):
        tape.free(allocate(size))
    for buffer in [*counts[1:], counts[0]]:
        tape.free(buffer)


def _refuse_unused(micro: MicroStep, tensors: Sequence[Parameter]) -> None:
    """Rejects trainable parameters that get no gradient: DDP stops at them in the second step.

    Raises:
        InputError: there is such a parameter.
    """
    arrived = set(micro.ready[:, 1].tolist())
    unused = [tensor.name for index, tensor in enumerate(tensors) if tensor.trainable and index not in arrived]
    if unused:
        raise InputError(f"engine ddp: {len(unused)} trainable parameters get no gradient, and DDP stops at that "
                         f"(the first is {unused[0]}): add them to frozen; find_unused_parameters, which would "
                         "make their gradients, is not modelled yet")


def _check_sharded(tensors: Sequence[Parameter]) -> None:
    """Rejects sharded weights that DDP would treat differently.

    DDP turns the DTensors of tensor parallelism into plain parameters that all train, module by module. Of a weight
    that two modules share, the second module's stays a DTensor (torch/distributed/tensor/parallel/ddp.py,
    ``_localize_dtensor``).

    Raises:
        InputError: a sharded weight is frozen, or shared by two modules.
    """
    sharded = [tensor for tensor in tensors if tensor.sharded]
    frozen = next((tensor.name for tensor in sharded if not tensor.trainable), None)
    if frozen:
        raise InputError(f"engine ddp with tensor_parallel_size: PyTorch trains every sharded weight, {frozen} too, "
                         "which is frozen: use recipe finetune or full, or engine torch")
    shared = next((tensor.name for tensor in sharded if tensor.is_embedding), None)  # sharded only with its head
    if shared:
        raise InputError(f"engine ddp with tensor_parallel_size: {shared} is tied to the head, and PyTorch stops at "
                         "sharded weights that two modules share: use engine torch")
