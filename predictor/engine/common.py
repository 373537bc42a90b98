"""What several engines do alike: the model's way to the device, the norm of partitioned gradients, equal ranks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from predictor.engine import quantized_loading
from predictor.engine.compose import RankPeak, Tape
from predictor.engine.setup import FP64, Setup
from predictor.events.events import EventList, Factor


class AlikeRanks:
    """An engine under which every rank holds the same; ``events`` is the run of each."""

    events: EventList

    def rank(self, rank: int) -> EventList:
        """Start-up and three steps."""
        return self.events

    def part(self, rank: int) -> Hashable:
        """Nothing."""
        return None

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[RankPeak]:
        """Nothing to choose among: no rank holds more than another."""
        return [RankPeak(0, 0)] * len(ranks)


def to_device(tape: Tape, setup: Setup) -> dict[int, int]:
    """The model moves to the device, tensor by tensor (``Module._apply``); the buffer of each, by its index.

    AutoTP takes its layers there first, as it cuts them (``TensorParallel_Layer.move``).
    """
    if setup.quantization:
        return quantized_loading.load(tape, setup)
    facts = setup.facts
    cut = {tensor.module for tensor in facts.parameters if tensor.sharded} if setup.zero else ()
    order = [index for index, tensor in enumerate(facts.parameters) if tensor.module in cut] + facts.moved
    return {index: tape.allocate(facts.parameters[index].bytes, Factor.PARAMETERS, "to",
                                 module=facts.parameters[index].module) for index in dict.fromkeys(order)}


def grad_norm(tape: Tape, numels: Iterable[int]) -> None:
    """``get_grad_norm_direct`` (DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, stage3.py): one fp64 copy at a time,
    and a scalar each until the group is done."""
    scalars = []
    for numel in numels:
        copy = tape.allocate(FP64 * numel, Factor.TEMPORARIES, "zero::get_grad_norm")
        scalars.append(tape.allocate(FP64, Factor.TEMPORARIES, "zero::get_grad_norm"))
        tape.free(copy)
    for scalar in reversed(scalars):
        tape.free(scalar)
