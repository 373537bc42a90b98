"""Adds an evaluation after the training steps: one forward of the model alone, without gradients.

Hugging Face's Trainer runs it so when it keeps only the loss (transformers 5.17, trainer.py, prediction_step). The
engine's memory stays allocated. The cuBLAS workspaces of the same thread exist since training; inputs are freed at the
end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.common.gpus import Gpu
from predictor.engine.setup import STEPS
from predictor.events.events import FACTORS, Buffers, EventList, Factor
from predictor.events.micro_step import MicroStep
from predictor.events.sizes import Shape


def with_evaluation(events: EventList, micro: MicroStep, shape: Shape, gpu: Gpu) -> EventList:
    """Adds an evaluation to the end of a run.

    Args:
        micro: the traced forward.
        shape: the shape of the evaluation batch. The added sizes are right at this shape only.
    """
    added, names, stays = micro.events, len(events.names), micro.persistent
    is_input = added.buffers.factor[stays] == FACTORS.index(Factor.INPUTS)
    inputs, workspaces = stays[is_input], stays[~is_input]
    own = ~np.isin(added.buffer, workspaces)
    kind = np.concatenate([added.kind[own], np.full(len(inputs), -1, dtype=np.int8)])
    buffer = np.concatenate([added.buffer[own], inputs]) + len(events.buffers)
    shifted = replace(added.buffers, size=added.buffers.size + len(events.sizes), module=added.buffers.module + names,
                      operator=added.buffers.operator + names)
    return EventList(
        kind=np.concatenate([events.kind, kind]), buffer=np.concatenate([events.buffer, buffer]),
        moment=np.concatenate([events.moment, np.full(len(kind), added.moment[0])]),
        step=np.concatenate([events.step, np.full(len(kind), STEPS)]),
        buffers=Buffers.concatenate([events.buffers, shifted]),
        sizes=events.sizes.with_constants(added.sizes.at(shape, gpu).tolist()), names=events.names + added.names)
