"""Parts that several engines share: moving the model to the device, DeepSpeed's gradient norm, equal ranks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from predictor.engine import quantized_loading
from predictor.engine.compose import RankPeak
from predictor.engine.setup import FP64, Setup
from predictor.engine.tape import Tape
from predictor.events.events import EventList, EventType, Factor


class AlikeRanks:
    """Base class of engines under which all ranks have equal events. ``events`` is the run of each rank."""

    depends_on_capacity = False
    events: EventList

    def rank(self, rank: int) -> EventList:
        """The events of a rank: start-up and three optimizer steps."""
        return self.events

    def rank_key(self, rank: int) -> Hashable:
        """The same key for all ranks."""
        return None

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[RankPeak]:
        """Equal numbers: no rank holds more than another."""
        return [RankPeak(0, 0)] * len(ranks)


def to_device(tape: Tape, setup: Setup) -> dict[int, int]:
    """Moves the model to the device, tensor by tensor (``Module._apply``).

    AutoTP moves its sharded layers first, as it shards them (``TensorParallel_Layer.move``).

    Returns:
        Index of a tensor -> its buffer.
    """
    if setup.quantization:
        return quantized_loading.load(tape, setup)
    tensors = setup.facts.parameters
    sharded = {tensor.module for tensor in tensors if tensor.sharded} if setup.zero else ()
    order = [index for index, tensor in enumerate(tensors) if tensor.module in sharded] + setup.facts.moved
    order = list(dict.fromkeys(order))
    buffers = tape.declare_each([tensors[index].bytes for index in order], Factor.PARAMETERS, "to",
                                [tensors[index].module for index in order])
    tape.record_each([int(EventType.ALLOCATE)] * len(order), buffers)
    return dict(zip(order, buffers))


def grad_norm(tape: Tape, numels: Iterable[int]) -> None:
    """The norm of one group's gradients: one fp64 copy at a time, and a scalar of each gradient until the group's end.

    ``get_grad_norm_direct`` (DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, stage3.py).
    """
    buffers = tape.declare_each([size for numel in numels for size in (FP64 * numel, FP64)], Factor.TEMPORARIES,
                                "zero::get_grad_norm")
    copies, scalars = buffers[::2], buffers[1::2]
    allocate, free = int(EventType.ALLOCATE), int(EventType.FREE)  # plain numbers become columns faster
    tape.record_each([allocate, allocate, free] * len(copies),
                     [buffer for copy, scalar in zip(copies, scalars) for buffer in (copy, scalar, copy)])
    tape.record_each([free] * len(scalars), scalars[::-1])
