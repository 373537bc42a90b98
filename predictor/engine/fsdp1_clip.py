"""Gradient clipping of FSDP1 (torch 2.11, fully_sharded_data_parallel.py, ``clip_grad_norm_``, ``_get_grad_norm``)."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.common.gpus import Gpu
from predictor.engine.setup import FP32
from predictor.engine.tape import Tape
from predictor.engine.torch_loop import norm_of_one
from predictor.events.events import Factor
from predictor.events.model_facts import Parameter


def clip(tape: Tape, gradients: Sequence[Parameter], gpu: Gpu, *, offloads: bool) -> None:
    """Norms of all gradients in fp32, and the factor, in their dtype, that scales them.

    Args:
        gradients: the rank's part of each parameter that has a gradient.
        offloads: whether the gradients are in the host's memory, where they are also scaled.
    """
    def scalar(size: int = FP32) -> int:
        return tape.allocate(size, Factor.TEMPORARIES, "clip_grad_norm")

    def free(*buffers: int) -> None:
        for buffer in buffers:
            tape.free(buffer)

    with tape.first_step_only():
        scalar()  # _zero_scalar
    if offloads and gradients:
        free(*(scalar() for _ in range(3)))  # on the GPU for the sum over all ranks, its square, the root of that
        return
    norms = [norm_of_one(tape, gradient, FP32, gpu) for gradient in gradients]
    length = []
    if norms:
        stacked = scalar(FP32 * len(norms))
        free(*norms)
        length.append(scalar())
        free(stacked)
    square = scalar()
    total = scalar()
    free(square)
    larger, reciprocal = scalar(), scalar()  # plus epsilon
    factor = scalar()
    free(reciprocal, larger)
    clamped = scalar()
    widths = [gradient.itemsize for gradient in gradients if gradient.itemsize != FP32]
    for width in widths:
        free(scalar(width))
    returned = [scalar(width) for width in widths[:1]]
    free(*length, total, factor, clamped, *returned)
