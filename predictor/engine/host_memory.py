"""Host memory that a rank uses when DeepSpeed offloads to it.

PyTorch allocates pinned memory in powers of two, and keeps freed pinned memory (torch 2.11,
aten/src/ATen/core/CachingHostAllocator.h, ``allocate``, ``free``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from predictor.engine import optimizer
from predictor.engine.setup import FP32, Setup
from predictor.engine.tape import Tape
from predictor.events.events import FACTORS, Factor

STATES = FACTORS.index(Factor.OPTIMIZER_STATES)
GIB = 1 << 30
OFFLOADS = "the host's memory: offloading takes"
"""How the note for the user begins."""


class Host:
    """Bytes of host memory by purpose, without the memory of Python and the libraries."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()

    def hold(self, purpose: str, size_bytes: int, *, pinned: bool) -> None:
        """Adds one tensor; pinned memory is rounded up to a power of two."""
        self.held[purpose] += 1 << (size_bytes - 1).bit_length() if pinned else size_bytes

    def hold_states(self, setup: Setup, groups: Iterable[tuple[int, bool]]) -> None:
        """Adds the optimizer's states.

        Args:
            groups: elements of each flat group, and whether weight decay applies to it.
        """
        tape, steps = Tape(), setup.optimizer()
        for numel, decay in groups:
            steps.step(tape, [optimizer.partition(numel, FP32)], decay=decay)
        self.held["optimizer states"] += sum(size for size, factor in zip(tape.buffers.sizes, tape.buffers.factors)
                                             if factor == STATES)

    def note(self) -> str:
        """A note for the user."""
        parts = ", ".join(f"{purpose} {size / GIB:.2f}" for purpose, size in self.held.items())
        return f"{OFFLOADS} {self.held.total() / GIB:.2f} GiB of it for each rank ({parts})"
