"""ZeRO-1 and ZeRO-2 with the optimizer on the host: what a rank's own gradients leave on the GPU on their way there.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: ``copy_grads_in_partition``,
``async_accumulate_grad_in_cpu_via_gpu``, ``set_norm_for_param_grad_in_gpu``,
``update_offload_overflow_tracker_for_param_grad``, ``async_inplace_copy_grad_to_fp32_buffer_from_gpu``. Master
weights, states and the partition's gradients lie in the host's memory; the optimizer steps there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from predictor.engine.compose import Tape
from predictor.engine.setup import FP32, FP64
from predictor.engine.zero_partition import Group, Slice
from predictor.events.events import Factor, Kind, Moment

FIRST_RELEASE = (0, 19, 8)


class ToHost:
    """One micro-step's gradients on their way to the host; which are copied differs by rank.

    Args:
        tape: of all ranks.
        stream: on which gradients are reduced and copied.
        last: whether the step's gradients are complete; before, they add up on the host.
        again: whether there are some on the host already.

    Attributes:
        norms: for each rank, the buffers of its gradients' norms, which live until the step's end.
    """

    def __init__(self, tape: Tape, groups: Sequence[Group], stream: int, *, last: bool, again: bool) -> None:
        self._tape, self._stream, self._last, self._again = tape, stream, last, again
        self._slices: dict[int, list[Slice]] = defaultdict(list)
        for piece in (piece for group in groups for piece in group.slices):
            self._slices[piece.parameter].append(piece)
        self._rows: dict[int, list[int]] = defaultdict(list)
        self.norms: dict[int, list[int]] = defaultdict(list)

    def copy(self, parameter: int) -> None:
        """Each rank that owns a part of a gradient copies it."""
        tape, stream = self._tape, self._stream
        for _, rank, numel in self._slices[parameter]:
            begin = len(tape.rows)
            if self._again or (not self._last and self._rows[rank]):
                tape.mark(Kind.SYNCHRONIZE)  # _wait_for_offload_copies
            if self._last:
                wide = tape.allocate(FP64 * numel, Factor.TEMPORARIES, "zero::grad_norm", stream=stream)
                self.norms[rank].append(tape.allocate(FP64, Factor.TEMPORARIES, "zero::grad_norm", stream=stream))
                tape.free(wide)
                tape.mark(Kind.SYNCHRONIZE)  # has_inf_or_nan is asked
                tape.free(tape.allocate(FP32 * numel, Factor.GRADIENTS, "zero::copy_to_host", stream=stream))
            self._rows[rank] += range(begin, len(tape.rows))

    def events(self, places: np.ndarray) -> dict[int, np.ndarray]:
        """For each rank, the events that it alone has; ``places`` of the tape's rows."""
        return {rank: places[rows] for rank, rows in self._rows.items() if rows}


def step(tape: Tape, norms: Iterable[int]) -> None:
    """The GPU's part of ``step()``: it waits, and forgets the norms (``reset_cpu_buffers``)."""
    tape.moment = Moment.OPTIMIZER_STEP
    tape.mark(Kind.SYNCHRONIZE)  # _wait_for_offload_copies
    for norm in norms:
        tape.free(norm)
