"""The plain PyTorch loop on one GPU: gradients live until the step ends; the optimizer updates the parameters directly.

torch 2.11: AccumulateGrad (torch/csrc/autograd/functions/accumulate_grad.h), torch/nn/utils/clip_grad.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from predictor.common.gpus import Gpu
from predictor.engine.common import AlikeRanks, to_device
from predictor.engine.compose import Stretch, Vocabulary, weave
from predictor.engine.foreach import by_dtype
from predictor.engine.grad_scaler import GradScaler
from predictor.engine.setup import FP32, Setup
from predictor.engine.tape import EngineBuffers, Tape
from predictor.events.events import FACTORS, Factor, Moment
from predictor.events.micro_step import MicroStep
from predictor.events.model_facts import Parameter
from predictor.events.workspaces import reduction_buffer, reduction_semaphores


class TorchLoop(AlikeRanks):
    """A run of the plain loop; with tensor parallelism all ranks are equal."""

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        vocabulary, start = Vocabulary(micro), Tape()
        to_device(start, setup)
        setup.optimizer().construct(start, [setup.facts.parameters[i] for group in setup.groups() for i in group])
        self.events = vocabulary.assemble(Stretch(start.columns()[:3], 0, vocabulary.buffers(start.buffers)),
                                          step(micro, setup, vocabulary))


class Wrapper(Protocol):
    """A wrapper of the model, such as DDP, that adds events to its micro-steps."""

    takes_gradients: bool
    """Whether a gradient is copied elsewhere and freed as soon as it is complete."""

    def begin(self, tape: Tape, index: int) -> None:
        """Records the events at the beginning of micro-step ``index`` of a step."""


def step(micro: MicroStep, setup: Setup, vocabulary: Vocabulary, wrapper: Wrapper | None = None) -> Stretch:
    """One optimizer step, with its micro-steps."""
    count, each = setup.micro_steps, len(micro.events.buffers)
    columns, once = [], []
    buffers, first = EngineBuffers(), count * each
    for index in range(count):
        tape = Tape(first, buffers=buffers)
        part, mask = micro_step(micro, index, tape, wrapper)
        columns.append(part)
        once.append(mask)
    tape = Tape(first, Moment.OPTIMIZER_STEP, buffers=buffers)
    tensors = setup.facts.parameters
    reached = set(micro.ready[:, 1].tolist())
    scaler = GradScaler(tape, fused=setup.optim == "adamw_torch_fused") if setup.loss_scaling else None
    if setup.max_grad_norm:
        if scaler:
            scaler.unscale()
        gradients = [tensors[p] for p in sorted(reached)]
        if setup.mixed:
            clip_mixed(tape, gradients, setup.gpu)
        else:
            clip(tape, gradients)
    if scaler:
        scaler.before_step()
    optimizer = setup.optimizer()
    for group in setup.groups():
        optimizer.step(tape, [tensors[i] for i in group if i in reached], decay=setup.decays(group))
    if scaler:
        scaler.update()
    for buffer in () if wrapper and wrapper.takes_gradients else micro.ready[:, 2].tolist():
        tape.free(buffer)
    return Stretch(np.concatenate([*columns, tape.columns()[:3]], axis=1), count,
                   vocabulary.buffers(buffers), np.concatenate([*once, tape.first_step_mask()]))


def micro_step(micro: MicroStep, index: int, tape: Tape, wrapper: Wrapper | None,
               end: Callable[[], None] = lambda: None) -> tuple[np.ndarray, np.ndarray]:
    """The columns of one micro-step, and whether only the first step has each of them.

    From the second micro-step on, each gradient is added to that of the first micro-step and freed.

    Args:
        end: records the events at the end of the micro-step.
    """
    if wrapper:
        tape.moment, tape.position = Moment.FORWARD, _inputs(micro)
        wrapper.begin(tape, index)
    tape.moment = Moment.BACKWARD
    for position, _, buffer in micro.ready.tolist() if index or (wrapper and wrapper.takes_gradients) else ():
        tape.position = position
        tape.free(buffer)
    end()
    columns, places = weave(micro, tape)
    kind, buffer, moment = columns
    traced = (buffer >= 0) & (buffer < len(micro.events.buffers))
    once = traced & np.isin(buffer, micro.persistent)
    mask = once.copy()
    mask[places] |= tape.first_step_mask()
    columns = np.stack([kind, buffer + traced * np.int32(index * len(micro.events.buffers)), moment])
    return (columns[:, ~once], mask[~once]) if index else (columns, mask)


def _inputs(micro: MicroStep) -> int:
    """Number of events before the model is called, in which its inputs are moved to the device."""
    events = micro.events
    inputs = events.buffers.factor[events.buffer] == FACTORS.index(Factor.INPUTS)
    return int(np.argmin(inputs))


CHUNK_ELEMENTS = 65_536
"""kChunkSize, aten/src/ATen/native/cuda/MultiTensorApply.cuh."""


def clip(tape: Tape, gradients: list[Parameter]) -> None:
    """``clip_grad_norm_``: one scalar norm for each gradient, stacked in the widest dtype.

    For each dtype ``_foreach_norm`` first allocates partial norms: for every gradient as many fp32 numbers as the
    largest gradient has chunks (aten/src/ATen/native/cuda/ForeachReduceOp.cu, ``foreach_tensor_norm_cuda``).
    """
    norms = []
    for same in by_dtype(gradients):
        chunks = max(-(-gradient.numel // CHUNK_ELEMENTS) for gradient in same)
        partial = tape.allocate(4 * chunks * len(same), Factor.TEMPORARIES, "clip_grad_norm")
        norms += [tape.allocate(gradient.itemsize, Factor.TEMPORARIES, "clip_grad_norm") for gradient in same]
        tape.free(partial)
    stacked = tape.allocate(len(gradients) * max(gradient.itemsize for gradient in gradients), Factor.TEMPORARIES,
                            "clip_grad_norm")
    for buffer in [stacked, *norms]:
        tape.free(buffer)


def norm_of_one(tape: Tape, gradient: Parameter, itemsize: int, gpu: Gpu) -> int:
    """The norm of one gradient, whose buffer is returned. Many elements have partial results (Reduce.cuh)."""
    result = tape.allocate(itemsize, Factor.TEMPORARIES, "clip_grad_norm")
    dimensions = gpu, 1, gradient.numel, FP32, 1, 1
    sizes = reduction_buffer(*dimensions), reduction_semaphores(*dimensions)
    for partial in reversed([tape.allocate(int(size), Factor.TEMPORARIES, "clip_grad_norm")
                             for size in sizes if size]):
        tape.free(partial)
    return result


def clip_mixed(tape: Tape, gradients: list[Parameter], gpu: Gpu) -> None:
    """The gradient norm of DTensors and plain tensors: plain gradients first, then this rank's shards, one by one.

    ``Trainer._mixed_mesh_grad_norm`` (transformers 5.17, trainer.py).
    """
    def scalar(size: int) -> int:
        return tape.allocate(size, Factor.TEMPORARIES, "clip_grad_norm")

    width, squares = gradients[0].itemsize, []
    for sharded in (False, True):
        zero, part = scalar(FP32), [gradient for gradient in gradients if gradient.sharded is sharded]
        norms = [norm_of_one(tape, gradient, gradient.itemsize, gpu) for gradient in part]
        stacked = scalar(width * len(part))
        for buffer in norms:
            tape.free(buffer)
        length = scalar(width)
        squares.append(scalar(width))
        for buffer in (stacked, length, zero):
            tape.free(buffer)
    total = [scalar(width) for _ in range(2)]  # the sum, its root
    tape.free(total.pop(0))
    factor = [scalar(width) for _ in range(4)]  # plus epsilon, its reciprocal, times the norm, clamped
    for buffer in (*factor, *squares, *total):
        tape.free(buffer)
