"""Parts that several engines share: moving the model to the device, equal ranks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from predictor.engine import device_map_loading, quantized_loading
from predictor.engine.compose import RankPeak
from predictor.engine.setup import Setup
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
    if setup.device_map:
        return device_map_loading.load(tape, setup)
    tensors = setup.facts.parameters
    sharded = {tensor.module for tensor in tensors if tensor.sharded} if setup.zero else ()
    order = [index for index, tensor in enumerate(tensors) if tensor.module in sharded] + setup.facts.moved
    order = list(dict.fromkeys(order))
    buffers = tape.declare_each([tensors[index].bytes for index in order], Factor.PARAMETERS, "to",
                                [tensors[index].module for index in order])
    tape.record_each([int(EventType.ALLOCATE)] * len(order), buffers)
    return dict(zip(order, buffers))
