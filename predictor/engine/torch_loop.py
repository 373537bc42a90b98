"""Plain PyTorch on one GPU: gradients stay until the step ends, the optimizer works on the bf16 parameters.

torch 2.11: AccumulateGrad (torch/csrc/autograd/functions/accumulate_grad.h), torch/nn/utils/clip_grad.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.engine.compose import Stretch, Tape, Vocabulary, weave
from predictor.engine.setup import Setup
from predictor.events import EventList, Factor, Moment
from predictor.facts import Parameter
from predictor.formula import MicroStep


class TorchLoop:
    """The only rank's run."""

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        vocabulary, start = Vocabulary(micro), Tape()
        for index in setup.facts.moved:
            tensor = setup.facts.parameters[index]
            start.allocate(tensor.bytes, Factor.PARAMETERS, "to", module=tensor.module)
        setup.optimizer().construct(start, [setup.facts.parameters[i] for group in setup.groups() for i in group])
        self.events = vocabulary.assemble(Stretch(start.columns()[:3], 0, vocabulary.buffers(start.attributes)),
                                          _step(micro, setup, vocabulary))

    def rank(self, rank: int) -> EventList:
        """Start-up and three steps."""
        return self.events

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[tuple[int, int]]:
        """Nothing to choose among: no rank holds more than another."""
        return [(0, 0)] * len(ranks)


def _step(micro: MicroStep, setup: Setup, vocabulary: Vocabulary) -> Stretch:
    count, each = setup.micro_steps, len(micro.events.buffers)
    columns = [_micro_step(micro, index) for index in range(count)]
    tape = Tape(first=count * each, moment=Moment.OPTIMIZER_STEP)
    tensors = setup.facts.parameters
    reached = set(micro.ready[:, 1].tolist())
    if setup.max_grad_norm:
        _clip(tape, [tensors[p] for p in sorted(reached)])
    optimizer = setup.optimizer()
    for group in setup.groups():
        optimizer.step(tape, [tensors[i] for i in group if i in reached], decay=setup.decays(group))
    for buffer in micro.ready[:, 2].tolist():
        tape.free(buffer)
    once = [np.isin(part[1], micro.persistent) for part in columns]
    return Stretch(np.concatenate([*columns, tape.columns()[:3]], axis=1), count, vocabulary.buffers(tape.attributes),
                   np.concatenate([*once, tape.seldom()]))


def _micro_step(micro: MicroStep, index: int) -> np.ndarray:
    """From the second on, a gradient is added into the first one's and dropped."""
    tape = Tape(moment=Moment.BACKWARD)
    for position, _, buffer in micro.ready.tolist() if index else ():
        tape.position = position
        tape.free(buffer)
    columns, _ = weave(micro, tape)
    if index:
        columns = columns[:, ~np.isin(columns[1], micro.persistent)]
    return columns + np.array([[0], [index * len(micro.events.buffers)], [0]], dtype=np.int32)


CHUNK_ELEMENTS = 65_536
"""kChunkSize, aten/src/ATen/native/cuda/MultiTensorApply.cuh."""


def _clip(tape: Tape, gradients: list[Parameter]) -> None:
    """``clip_grad_norm_``: one scalar norm a gradient, stacked.

    ``_foreach_norm`` first makes an fp32 number for each chunk of the largest gradient, for every gradient
    (aten/src/ATen/native/cuda/ForeachReduceOp.cu, ``foreach_tensor_norm_cuda``).
    """
    chunks = max(-(-gradient.numel // CHUNK_ELEMENTS) for gradient in gradients)
    partial = tape.allocate(4 * chunks * len(gradients), Factor.TEMPORARIES, "clip_grad_norm")
    norms = [tape.allocate(gradient.itemsize, Factor.TEMPORARIES, "clip_grad_norm") for gradient in gradients]
    tape.free(partial)
    stacked = tape.allocate(sum(gradient.itemsize for gradient in gradients), Factor.TEMPORARIES, "clip_grad_norm")
    for buffer in [stacked, *norms]:
        tape.free(buffer)
