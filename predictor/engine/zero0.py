"""DeepSpeed's ZeRO stage 0 in bf16: nothing is partitioned, and every trainable weight has an fp32 master copy.

DeepSpeed 0.19.8: runtime/engine.py (``_do_optimizer_sanity_check``, ``_configure_fp16_optimizer``,
``buffered_allreduce_fallback``) wraps PyTorch's optimizer in ``FP16_UnfusedOptimizer`` of
runtime/fp16/unfused_optimizer.py. Gradients are those of the plain loop. The optimizer steps once at start-up.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from predictor.engine import torch_loop, zero_scalars
from predictor.engine.common import AlikeRanks, to_device
from predictor.engine.compose import Stretch, Vocabulary
from predictor.engine.setup import BF16, FP32, Setup
from predictor.engine.tape import EngineBuffers, Tape
from predictor.engine.zero2_backward import backward_end
from predictor.events.events import EventList, EventType, Factor, Moment
from predictor.events.micro_step import MicroStep

BUCKET_ELEMENTS = 500_000_000
"""``MEMORY_OPT_ALLREDUCE_SIZE``."""


class Unpartitioned(AlikeRanks):
    """A run under ZeRO stage 0.

    Of the ranks that share layers only the first computes the norm, and so needs the most: ``get_weight_norm`` looks
    for AutoTP's mark on gradients, which do not have it.
    """

    def __init__(self, micro: MicroStep, setup: Setup) -> None:
        self._micro, self._setup, self._tensors = micro, setup, setup.facts.parameters
        self._groups = setup.groups()
        self._optimizer = setup.optimizer()
        self.events = self._run(first=True)

    def rank(self, rank: int) -> EventList:
        """The events of a rank: start-up and three optimizer steps."""
        return self._run(first=False) if self._setup.place(rank)[1] else self.events

    def rank_key(self, rank: int) -> bool:
        """Whether the rank computes the norm."""
        return not self._setup.place(rank)[1]

    def _run(self, *, first: bool) -> EventList:
        vocabulary, start = Vocabulary(self._micro), Tape()
        self._start_up(start)
        return vocabulary.assemble(
            Stretch(start.columns()[:3], 0, vocabulary.buffers(start.buffers)), self._step(vocabulary, first))

    def _start_up(self, tape: Tape) -> None:
        to_device(tape, self._setup)
        for group in self._groups:
            for index in group:
                tensor = self._tensors[index]
                clone = tape.allocate(BF16 * tensor.numel, Factor.PARAMETERS, "zero::clone", module=tensor.module)
                tape.allocate(FP32 * tensor.numel, Factor.OPTIMIZER_STATES, "zero::master_weights",
                              module=tensor.module)
                tape.free(clone)
        gradients = [self._gradient(tape, index, width, "zero::initialize_optimizer_states")
                     for width in (BF16, FP32) for group in self._groups for index in group]
        self._update(tape)
        for gradient in gradients:
            tape.free(gradient)

    def _gradient(self, tape: Tape, index: int, width: int, operator: str) -> int:
        tensor = self._tensors[index]
        return tape.allocate(width * tensor.numel, Factor.GRADIENTS, operator, module=tensor.module)

    def _update(self, tape: Tape) -> None:
        """The wrapped optimizer's step, on the master weights. It cannot tell which of them are embeddings."""
        for group in self._groups:
            masters = [replace(self._tensors[index], itemsize=FP32, embedding=False) for index in group]
            self._optimizer.step(tape, masters, decay=self._setup.decays(group))

    def _step(self, vocabulary: Vocabulary, norm: bool) -> Stretch:
        micro, count = self._micro, self._setup.micro_steps
        columns, once = [], []
        buffers, first = EngineBuffers(), count * len(micro.events.buffers)
        gradients = {parameter: buffer for _, parameter, buffer in micro.ready.tolist()}
        for index in range(count):
            tape = Tape(first, buffers=buffers)
            losses = zero_scalars.losses(tape, micro, zero_scalars.LOSSES[:1])  # the optimizer is not one of ZeRO's
            end = partial(self._end, tape, losses, gradients if index == count - 1 else None)
            part, mask = torch_loop.micro_step(micro, index, tape, None, end)
            columns.append(part)
            once.append(mask)
        tape = Tape(first, Moment.OPTIMIZER_STEP, buffers=buffers)
        self._optimizer_step(tape, gradients, norm)
        return Stretch(np.concatenate([*columns, tape.columns()[:3]], axis=1), count,
                       vocabulary.buffers(buffers),
                       np.concatenate([*once, tape.first_step_mask()]))

    def _end(self, tape: Tape, losses: list[int], gradients: dict[int, int] | None) -> None:
        """The end of backward: reduces the gradients, if they are complete, and frees the losses."""
        tape.position = backward_end(self._micro)
        if gradients is not None:
            self._reduce(tape, gradients)
        for loss in losses:
            tape.free(loss)

    def _reduce(self, tape: Tape, gradients: dict[int, int]) -> None:
        """All-reduces the gradients, flattened bucket by bucket. Parameters without a gradient get zeros first."""
        trainable = sorted(index for group in self._groups for index in group)
        for index in trainable:
            if index not in gradients:
                gradients[index] = self._gradient(tape, index, BF16, "zero::zeros")
        bucket: list[int] = []
        for index in trainable:
            bucket.append(self._tensors[index].numel)
            if sum(bucket) > BUCKET_ELEMENTS or index == trainable[-1]:
                if len(bucket) > 1:  # one tensor is viewed
                    tape.free(tape.allocate(BF16 * sum(bucket), Factor.COMMUNICATION, "zero::allreduce_bucket"))
                bucket = []

    def _optimizer_step(self, tape: Tape, gradients: dict[int, int], norm: bool) -> None:
        copies = []
        for group in self._groups:
            for index in group if norm else ():  # get_weight_norm
                tape.free(tape.allocate(FP32 * self._tensors[index].numel, Factor.TEMPORARIES, "zero::get_weight_norm"))
            tape.mark(EventType.SYNCHRONIZE)
            copies += [self._gradient(tape, index, FP32, "zero::fp32_gradient") for index in group]
        begin = len(tape)
        self._update(tape)
        tape.drop_once(begin)
        for copy in copies:
            tape.free(copy)
        for group in self._groups:  # zero_grad
            for index in group:
                tape.free(gradients[index])
