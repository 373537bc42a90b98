"""Optimizers of bitsandbytes: states of 8 bits in blocks of 256 elements, or of 32 bits, in paged memory or not.

bitsandbytes 0.50.2, bitsandbytes/optim/optimizer.py, ``Optimizer8bit`` and its ``Optimizer1State`` and
``Optimizer2State``. Kernels update in place and need no memory of their own. Hugging Face keeps the states of
embeddings in 32 bits (transformers 5.17, Trainer.create_optimizer). Under ZeRO that rule has no effect, because the
optimizer gets flat partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.engine.tape import Tape
from predictor.events.events import EventType, Factor
from predictor.events.model_facts import Parameter

FP32 = 4
BLOCK_ELEMENTS = 256
"""Elements that share one maximum (``init_state``, blocksize)."""
MIN_8BIT_ELEMENTS = 4096
"""``min_8bit_size``: the states of smaller tensors have 32 bits."""
MIN_PAGED_ELEMENTS = 100_000
"""``get_state_buffer``: smaller states are allocated by PyTorch, not paged."""
MAP_BYTES = FP32 * 256
"""``create_dynamic_map``: a table of all 8-bit values; one for signed and one for unsigned states."""
MOST_ELEMENTS = (1 << 31) - 1
"""Largest element count of a tensor: ``ct.c_int32(g.numel())``, backends/cuda/ops.py."""


class Blockwise:
    """The optimizer of one run.

    Args:
        states: number of states for each parameter.
        bits: bits of a state's element, 8 or 32.
        paged: whether large states are in CUDA managed memory, which PyTorch's allocator does not see.
    """

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu, *, states: int, bits: int, paged: bool) -> None:
        self.states, self.bits, self.paged = states, bits, paged
        self.mapped = False

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """Allocates nothing: the first step creates the states."""

    def step(self, tape: Tape, tensors: Sequence[Parameter], weight_decay: float) -> None:
        for tensor in tensors:
            if tensor.numel > MOST_ELEMENTS:
                raise InputError(f"optim of bitsandbytes: it counts elements in 32 bits, and one tensor has "
                                 f"{tensor.numel:,}: use a higher data_parallel_size, or an optimizer of PyTorch")
            with tape.first_step_only():
                self._make(tape, tensor)
            tape.mark(EventType.SYNCHRONIZE)  # sync_gpu

    def _make(self, tape: Tape, tensor: Parameter) -> None:
        eight = self.bits == 8 and tensor.numel >= MIN_8BIT_ELEMENTS and not tensor.is_embedding
        names = [f"state{number}" for number in range(1, self.states + 1)]
        if eight and not self.mapped:
            for name in names:
                self._state(tape, MAP_BYTES, name.replace("state", "qmap"), "")
            self.mapped = True
        for name in names:
            if not (self.paged and tensor.numel >= MIN_PAGED_ELEMENTS):
                self._state(tape, tensor.numel * (1 if eight else FP32), name, tensor.module)
        if eight:
            for name in names:
                self._state(tape, FP32 * -(-tensor.numel // BLOCK_ELEMENTS), name.replace("state", "absmax"),
                            tensor.module)

    @staticmethod
    def _state(tape: Tape, size_bytes: int, name: str, module: str) -> None:
        tape.allocate(size_bytes, Factor.OPTIMIZER_STATES, f"bitsandbytes::{name}", module=module)
