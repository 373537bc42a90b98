"""DeepSpeed's scalars that live beside larger buffers: the losses from which backward starts, and gradient norms.

DeepSpeed 0.19.8. Scalars that never coincide with a peak are left out: those of the overflow check, and the losses'
gradients, which are freed after the first operator of backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from predictor.common.gpus import Gpu
from predictor.engine.setup import FP32, FP64
from predictor.engine.tape import MAIN_STREAM, Tape
from predictor.events.events import Factor, Moment
from predictor.events.micro_step import MicroStep
from predictor.events.workspaces import reduction_buffer, reduction_semaphores

LOSSES = "zero::loss", "zero::scaled_loss"
"""The loss divided by the number of micro-steps, and its product with the loss scale, which may be 1
(runtime/engine.py, ``backward``; runtime/base_optimizer.py, ``scale_if_loss``)."""
GLOBAL_NORM = "zero::global_grad_norm"
"""Name of ``_global_grad_norm``, which the engine keeps until the end of the next step (``_take_model_step``)."""


def losses(tape: Tape, micro: MicroStep, names: Sequence[str] = LOSSES, *, base: int = 0) -> list[int]:
    """Allocates scalars of the loss's size where backward begins. The caller frees them at its end.

    Args:
        base: the position of the micro-step's first event.
    """
    tape.moment, tape.position = Moment.BACKWARD, base + micro.backward_begin
    return [tape.allocate(micro.loss_bytes, Factor.TEMPORARIES, name) for name in names]


def logged_loss(tape: Tape, micro: MicroStep, micro_steps: int) -> int:
    """Before 0.18.3, ``engine.losses``: the sum of a step's losses so far, until its end (``_take_model_step``).

    It is in fp32 if it was divided by a number of micro-steps above 1 (``_scale_loss_by_gas``).
    """
    return tape.allocate(FP32 if micro_steps > 1 else micro.loss_bytes, Factor.TEMPORARIES, "zero::logged_loss")


def losses_before_0_18_3(tape: Tape, micro: MicroStep, micro_steps: int, *, mean: bool) -> list[int]:
    """The other scalars in backward of these releases, all in fp32, as :func:`losses`.

    If the model's loss is in 16 bits, its gradient also is in fp32, so 2 bytes larger than traced. That is left out.

    Args:
        mean: whether the micro-step's own loss, which was added to the logged one, lives as long.
    """
    tape.moment, tape.position = Moment.BACKWARD, micro.backward_begin
    names = ["zero::mean_loss"] * mean + ["zero::loss"] * (micro_steps > 1 or micro.loss_bytes < FP32)
    return [tape.allocate(FP32, Factor.TEMPORARIES, name) for name in [*names, "zero::scaled_loss"]]


def norm(tape: Tape, numel: int, gpu: Gpu, *, stream: int = MAIN_STREAM) -> int:
    """The norm of one gradient, an fp64 scalar: a copy in fp64, and partial results."""
    def allocate(size_bytes: int) -> int:
        return tape.allocate(size_bytes, Factor.TEMPORARIES, "zero::get_grad_norm", stream=stream)

    copy, result = allocate(FP64 * numel), allocate(FP64)
    for buffer in [copy, *map(allocate, _partial_results(numel, gpu))][::-1]:
        tape.free(buffer)
    return result


@lru_cache(maxsize=4096)
def _partial_results(numel: int, gpu: Gpu) -> tuple[int, ...]:
    """Bytes of what the blocks of threads that add up a gradient share, if there are several (Reduce.cuh)."""
    sizes = (int(size(gpu, 1, numel, FP64, 1, 1)) for size in (reduction_buffer, reduction_semaphores))
    return tuple(size for size in sizes if size)


def group_norm(tape: Tape, numels: Sequence[int], gpu: Gpu, size_bytes: int) -> int:
    """The norm of one group's gradients, of this size: one norm after the other, kept until the group's end.

    ``get_grad_norm_direct`` (runtime/zero/stage_1_and_2.py, stage3.py).
    """
    norms = [norm(tape, numel, gpu) for numel in numels]
    result = tape.allocate(size_bytes, Factor.TEMPORARIES, "zero::group_grad_norm")
    for buffer in norms[::-1]:
        tape.free(buffer)
    return result


def clip(tape: Tape, size_bytes: int) -> None:
    """Clipping of a group's gradient: norm over limit, that times the loss scale, its reciprocal, and that times 1.

    ``unscale_and_clip_grads`` (runtime/zero/stage_1_and_2.py, stage3.py).
    """
    for buffer in [tape.allocate(size_bytes, Factor.TEMPORARIES, "zero::clip") for _ in range(4)][::-1]:
        tape.free(buffer)
