"""ZeRO-3's gradient reductions: gradients are copied into a bucket, which is reduced to their partitions when full.

DeepSpeed 0.19.8: runtime/zero/stage3.py (``reduce_independent_p_g_buckets_and_remove_grads``,
``__add_grad_to_ipg_bucket``, ``__reduce_and_partition_ipg_grads``, ``__avg_scatter_grads``,
``__avg_scatter_contiguous_grads``, ``partition_grads``), runtime/comm/coalesced_collectives.py
(``reduce_scatter_coalesced``). With the optimizer on the host, the partitions are in host memory. On its way each is on
the GPU in bf16, and in the step's last micro-step also in fp64 (for its norm) and fp32. Ranks whose partition of a
small parameter is empty copy nothing; this difference is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.engine import zero_scalars
from predictor.engine.setup import BF16, FP32, Setup
from predictor.engine.tape import MAIN_STREAM, Tape
from predictor.engine.zero3_gathers import partition_numel
from predictor.engine.zero3_waits import Waits
from predictor.events.events import Factor
from predictor.events.model_facts import Parameter


class Reduction:
    """The bucket of one micro-step. Its allocations and frees are recorded on a tape.

    Args:
        stream: the stream on which gradients are reduced.
        waits: the host's waits, shared with the gathers.
        last: whether it is the step's last micro-step.

    Attributes:
        norms: buffers of the norms of offloaded gradients; they live until the end of the step.
    """

    def __init__(self, tape: Tape, tensors: Sequence[Parameter], setup: Setup, stream: int, waits: Waits, *,
                 last: bool) -> None:
        self._tape, self._tensors, self._zero, self._degree = tape, tensors, setup.deepspeed, setup.data_parallel_size
        self._stream, self._gpu, self._waits, self._last = stream, setup.gpu, waits, last
        self.norms: list[int] = []
        self._elements = 0
        self._waiting: list[tuple[int, int | None]] = []

    def add(self, parameter: int, gradient: int) -> None:
        """Adds a complete gradient to the bucket; ``gradient`` is its buffer."""
        numel, limit = self._tensors[parameter].numel, self._zero.reduce_bucket_size
        if self._elements and self._elements + numel > limit:
            self.reduce()
        fits = self._zero.contiguous_gradients and self._elements + numel <= limit
        if fits:  # copied
            self._free(gradient)
        self._waiting.append((parameter, None if fits else gradient))
        self._elements += numel

    def reduce(self) -> None:
        """Averages every gradient in the bucket over the ranks, and keeps this rank's partition of it."""
        if not self._waiting:
            return
        contiguous = self._zero.contiguous_gradients and self._elements <= self._zero.reduce_bucket_size
        self._waits.before("reduce")
        copies = self._all_reduced() if contiguous and not self._zero.reduce_scatter else self._reduce_scattered()
        partition = None
        for parameter, gradient in sorted(self._waiting):
            if self._zero.offload_optimizer:
                if partition is not None:
                    self._tape.free(partition)
                partition = self._to_host(partition_numel(self._tensors[parameter], self._degree))
            if gradient is not None:
                self._free(gradient)
        if partition is not None:
            self._tape.free(partition)
        for buffer in copies:
            self._tape.free(buffer)
        self._waits.record("reduce")
        self._waiting, self._elements = [], 0

    def _free(self, gradient: int) -> None:
        if self._stream != MAIN_STREAM:
            self._tape.record_stream(gradient, self._stream)
        self._tape.free(gradient)

    def _allocate(self, numel: int) -> int:
        return self._tape.allocate(self._tensors[0].itemsize * numel, Factor.COMMUNICATION, "zero::reduce",
                                   stream=self._stream)

    def _to_host(self, numel: int) -> int:
        """``partition_grads``, ``_offload_grad_partition_at_boundary``. The caller frees the result later."""
        tape, stream = self._tape, self._stream
        partition = tape.allocate(BF16 * numel, Factor.GRADIENTS, "zero::copy_to_host", stream=stream)
        if self._last:
            self.norms.append(zero_scalars.norm(tape, numel, self._gpu, stream=stream))
            tape.free(tape.allocate(FP32 * numel, Factor.GRADIENTS, "zero::copy_to_host", stream=stream))
        return partition

    def _reduce_scattered(self) -> list[int]:
        numels = [self._tensors[parameter].numel for parameter, _ in sorted(self._waiting)]
        if len(numels) == 1 and not numels[0] % self._degree:
            return []  # in place
        chunks = [-(-numel // self._degree) for numel in numels]
        begins = np.arange(self._degree)[:, None] * chunks
        missing = chunks - np.clip(numels - begins, 0, chunks)  # of each rank's part of each gradient, rank by rank
        pads = [self._allocate(size) for size in missing[missing > 0].tolist()]
        flat = self._allocate(self._degree * sum(chunks))
        for pad in pads:
            self._tape.free(pad)
        return [flat]

    def _all_reduced(self) -> list[int]:
        if self._degree == 1:
            return []
        return [self._allocate(self._elements)]  # the bucket times gradient_predivide_factor, which is 1
