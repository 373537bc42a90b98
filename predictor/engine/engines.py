"""The engines: to add one, write its file and its line in :data:`ENGINES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from predictor.engine.ddp import Ddp
from predictor.engine.fsdp2 import Fsdp2
from predictor.engine.setup import Setup
from predictor.engine.torch_loop import TorchLoop
from predictor.engine.unpartitioned import Unpartitioned
from predictor.engine.zero2 import Zero2
from predictor.engine.zero3 import Zero3
from predictor.events import EventList
from predictor.formula import MicroStep


class Engine(Protocol):
    """A run under an engine, independent of the shape: what its ranks share is worked out once."""

    def rank(self, rank: int) -> EventList:
        """Start-up and three steps of one rank."""

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[tuple[int, int]]:
        """Peak requested bytes of ranks: of the run, and of its steps alone; ``traced_bytes`` of the traced buffers."""


ENGINES: dict[str, Callable[[MicroStep, Setup], Engine]] = {
    "torch": TorchLoop,
    "ddp": Ddp,
    "fsdp2": Fsdp2,
    "zero0": Unpartitioned,
    "zero1": Zero2,
    "zero2": Zero2,
    "zero3": Zero3,
}
"""Name, as :func:`name_of` gives it, -> engine."""


def name_of(engine: str, zero_stage: int | None) -> str:
    """Of a workload's ``engine`` and ``zero_stage``."""
    return f"zero{zero_stage}" if engine == "deepspeed" else engine
