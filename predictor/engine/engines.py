"""What runs each engine: to add one, write its file, its line here, and its line in ``predictor.workload.engines``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from predictor.engine.compose import RankPeak
    from predictor.engine.setup import Setup
    from predictor.events.events import EventList
    from predictor.events.micro_step import MicroStep


class Engine(Protocol):
    """A run under an engine, independent of the shape: what its ranks share is worked out once."""

    def rank(self, rank: int) -> EventList:
        """Start-up and three steps of one rank."""

    def part(self, rank: int) -> Hashable:
        """All that the events of a rank depend on: ranks of which it is equal allocate and free alike."""

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[RankPeak]:
        """Peak requested bytes of ranks: of the run, and of its steps alone; ``traced_bytes`` of the traced buffers."""


IMPLEMENTATIONS = {
    "torch": "predictor.engine.torch_loop.TorchLoop",
    "ddp": "predictor.engine.ddp.Ddp",
    "fsdp2": "predictor.engine.fsdp2.Fsdp2",
    "zero0": "predictor.engine.zero0.Unpartitioned",
    "zero1": "predictor.engine.zero2.Zero2",
    "zero2": "predictor.engine.zero2.Zero2",
    "zero3": "predictor.engine.zero3.Zero3",
}
"""Name of an engine -> its class, an :class:`Engine`, made of a ``MicroStep`` and a ``Setup``."""


def load(name: str) -> Callable[[MicroStep, Setup], Engine]:
    """The class of an engine, imported now."""
    module, _, attribute = IMPLEMENTATIONS[name].rpartition(".")
    return getattr(import_module(module), attribute)
