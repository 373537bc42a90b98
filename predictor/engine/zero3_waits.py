"""The host's waits for the device under ZeRO-3. At a wait, freed blocks that two streams used become reusable."""

from __future__ import annotations

from collections import Counter

from predictor.engine.tape import Tape
from predictor.events.events import EventType

MOST_IN_FLIGHT = 2
"""``__max_ongoing_fetch_events`` (partitioned_param_coordinator.py) and ``max_param_reduce_events`` (stage3.py),
DeepSpeed 0.19.8."""


class Waits:
    """Counts the CUDA events that have not been waited for, by the operation that they belong to.

    Args:
        tape: records the synchronizations.
        several: whether there is more than one stream. With one stream, no block needs a wait.
    """

    def __init__(self, tape: Tape, *, several: bool) -> None:
        self._tape, self._several = tape, several
        self._recorded: Counter[str] = Counter()

    def synchronize(self) -> None:
        """The host waits for the device; all recorded events are then complete."""
        if self._several:
            self._tape.mark(EventType.SYNCHRONIZE)
        self._recorded.clear()

    def before(self, name: str) -> None:
        """Waits before another event of operation ``name`` if too many of them are in flight."""
        if self._recorded[name] > MOST_IN_FLIGHT:
            self.synchronize()

    def record(self, name: str) -> None:
        """Records an event of operation ``name``."""
        self._recorded[name] += 1
