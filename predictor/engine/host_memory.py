"""What a rank holds in the host's memory where DeepSpeed offloads.

PyTorch pins memory in powers of two, and keeps what is freed of it (torch 2.11,
aten/src/ATen/core/CachingHostAllocator.h, ``allocate``, ``free``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from predictor.engine import optimizer
from predictor.engine.compose import Tape
from predictor.engine.setup import FP32, Setup
from predictor.events.events import FACTORS, Factor

STATES = FACTORS.index(Factor.OPTIMIZER_STATES)
GIB = 1 << 30


class Host:
    """Bytes by what they are for, without what Python and the libraries need."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()

    def hold(self, what: str, size_bytes: int, *, pinned: bool) -> None:
        """One tensor."""
        self.held[what] += 1 << (size_bytes - 1).bit_length() if pinned else size_bytes

    def hold_states(self, setup: Setup, groups: Iterable[tuple[int, bool]]) -> None:
        """The optimizer's, of flat groups: elements, and whether they decay."""
        tape, steps = Tape(), setup.optimizer()
        for numel, decay in groups:
            steps.step(tape, [optimizer.partition(numel, FP32)], decay=decay)
        self.held["optimizer states"] += sum(made.size_bytes for made in tape.attributes if made.factor == STATES)

    def note(self) -> str:
        """A line for the user."""
        parts = ", ".join(f"{what} {size / GIB:.2f}" for what, size in self.held.items())
        return f"the host's memory: offloading takes {self.held.total() / GIB:.2f} GiB of it for each rank ({parts})"
