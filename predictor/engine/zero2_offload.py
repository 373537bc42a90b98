"""ZeRO-1 and ZeRO-2 with the optimizer on the host: GPU buffers of a rank's gradients on their way to the host.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: ``copy_grads_in_partition``,
``async_accumulate_grad_in_cpu_via_gpu``, ``set_norm_for_param_grad_in_gpu``,
``update_offload_overflow_tracker_for_param_grad``, ``async_inplace_copy_grad_to_fp32_buffer_from_gpu``. Master
weights, optimizer states and the partition's gradients are in the host's memory; the optimizer steps there. Older
releases check for overflow with copies of the gradient (``_has_inf_or_nan``), and send updated weights back in fp32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from predictor.engine import zero_scalars
from predictor.engine.setup import FP32, Setup
from predictor.engine.tape import MAIN_STREAM, Tape
from predictor.engine.zero2_releases import has
from predictor.engine.zero_partition import Group, Slice
from predictor.events.events import EventType, Factor, Moment


class ToHost:
    """Copies one micro-step's gradients to the host. Each rank copies those that it owns.

    Args:
        tape: the tape with the events of all ranks.
        stream: the stream on which gradients are reduced and copied.
        setup: the run, with its GPU and its release of DeepSpeed.
        last: whether this micro-step completes the step's gradients; before, they accumulate on the host.
        host_has_gradients: whether earlier micro-steps have copied gradients to the host.

    Attributes:
        norms: rank -> buffers of its gradients' norms, which live until the end of the step.
    """

    def __init__(self, tape: Tape, groups: Sequence[Group], stream: int, setup: Setup, *, last: bool,
                 host_has_gradients: bool) -> None:
        self._checks_copies = not has(setup.deepspeed, "overflow_check_by_extrema")
        self._waits = has(setup.deepspeed, "waits_for_copies")
        self._tape, self._stream, self._gpu = tape, stream, setup.gpu
        self._last, self._host_has_gradients = last, host_has_gradients
        self._slices: dict[int, list[Slice]] = defaultdict(list)
        for piece in (piece for group in groups for piece in group.slices):
            self._slices[piece.parameter].append(piece)
        self._rows: dict[int, list[int]] = defaultdict(list)
        self.norms: dict[int, list[int]] = defaultdict(list)

    def copy(self, parameter: int, numel_of_gradient: int) -> None:
        """Copies a gradient to the host, on each rank that owns a part of it. Each checks all of it for overflow."""
        tape, stream = self._tape, self._stream
        for _, rank, numel in self._slices[parameter]:
            begin = len(tape)
            if self._waits and (self._host_has_gradients or (not self._last and self._rows[rank])):
                tape.mark(EventType.SYNCHRONIZE)  # _wait_for_offload_copies
            if self._last:
                self.norms[rank].append(zero_scalars.norm(tape, numel, self._gpu, stream=stream))
                if self._checks_copies:
                    check_overflow_in_copies(tape, numel_of_gradient, stream)
                tape.mark(EventType.SYNCHRONIZE)  # has_inf_or_nan is read
                tape.free(tape.allocate(FP32 * numel, Factor.GRADIENTS, "zero::copy_to_host", stream=stream))
            self._rows[rank] += range(begin, len(tape))

    def events(self, places: np.ndarray) -> dict[int, np.ndarray]:
        """Rank -> the events that only this rank has. ``places`` gives the event of each row of the tape."""
        return {rank: places[rows] for rank, rows in self._rows.items() if rows}


def check_overflow_in_copies(tape: Tape, numel: int, stream: int = MAIN_STREAM) -> None:
    """``_has_inf_or_nan`` before DeepSpeed 0.19.6: fp32 copies and masks of a gradient, 11 bytes for each element."""
    buffers = [tape.allocate(width * numel, Factor.TEMPORARIES, "zero::has_inf_or_nan", stream=stream)
               for width in (FP32, 1, 1, 1, FP32)]
    for buffer in buffers:
        tape.free(buffer)


def step(tape: Tape, norms: Iterable[int], wide_numels: Sequence[int]) -> None:
    """The GPU's part of ``step()``: waits, adds up the norms, receives the updated weights, and frees
    the norms (``reset_cpu_buffers``).

    The losses that releases before 0.18.3 keep until the step's end (``zero_scalars.logged_loss``) are left out here.

    Args:
        wide_numels: elements of each partition, if the GPU converts them from fp32; empty if the host does.
    """
    tape.moment = Moment.OPTIMIZER_STEP
    tape.mark(EventType.SYNCHRONIZE)  # _wait_for_offload_copies
    tape.free(tape.allocate(FP32, Factor.TEMPORARIES, "zero::group_grad_norm"))
    for numel in wide_numels:
        tape.free(tape.allocate(FP32 * numel, Factor.PARAMETERS, "zero::master_weights_from_host"))
    for norm in norms:
        tape.free(norm)
