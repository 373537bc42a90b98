"""Table of the engines' classes.

To add an engine, write its file, its line here, and its line in ``predictor.workload.engines``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np

    from predictor.engine.compose import RankPeak
    from predictor.engine.host_memory import Host
    from predictor.engine.setup import Setup
    from predictor.events.events import EventList
    from predictor.events.micro_step import MicroStep


class Engine(Protocol):
    """A run under an engine, independent of the shape. What its ranks share is computed once.

    Attributes:
        depends_on_capacity: whether the engine itself allocates otherwise where there is less memory.
    """

    depends_on_capacity: ClassVar[bool]

    def __init__(self, micro: MicroStep, setup: Setup) -> None: ...

    def __hash__(self) -> int: ...

    def rank(self, rank: int) -> EventList:
        """The events of one rank: start-up and three optimizer steps."""

    def rank_key(self, rank: int) -> Hashable:
        """A key of everything that the events of a rank depend on. Ranks with equal keys have equal events."""

    def peaks(self, ranks: Sequence[int], traced_bytes: np.ndarray) -> list[RankPeak]:
        """Numbers by which ranks are compared: peak requested bytes of the run, and of its steps.

        Args:
            traced_bytes: the size of each traced buffer, in bytes.
        """


class Offloading(Engine, Protocol):
    """An engine that can offload to the host's memory."""

    def host(self) -> Host:
        """The bytes that a rank offloads."""


IMPLEMENTATIONS = {
    "torch": "predictor.engine.torch_loop.TorchLoop",
    "ddp": "predictor.engine.ddp.Ddp",
    "fsdp1": "predictor.engine.fsdp1.Fsdp1",
    "fsdp2": "predictor.engine.fsdp2.Fsdp2",
    "zero0": "predictor.engine.zero0.Unpartitioned",
    "zero1": "predictor.engine.zero2.Zero2",
    "zero2": "predictor.engine.zero2.Zero2",
    "zero3": "predictor.engine.zero3.Zero3",
}
"""Name of an engine -> its class, an :class:`Engine` that is constructed from a ``MicroStep`` and a ``Setup``."""


def load(name: str) -> type[Engine]:
    """The class of an engine; its module is imported at this call."""
    module, _, attribute = IMPLEMENTATIONS[name].rpartition(".")
    return getattr(import_module(module), attribute)
