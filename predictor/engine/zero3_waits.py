"""Where the host waits for the device under ZeRO-3: there blocks that two streams used become free."""

from __future__ import annotations

from collections import Counter

from predictor.engine.compose import Tape
from predictor.events.events import Kind

MOST_IN_FLIGHT = 2
"""``__max_ongoing_fetch_events`` (partitioned_param_coordinator.py) and ``max_param_reduce_events`` (stage3.py),
DeepSpeed 0.19.8."""


class Waits:
    """Events that nobody has waited for yet, by what they are of.

    Args:
        tape: where synchronisations are marked.
        several: whether there is more than one stream; with one, no block waits for anything.
    """

    def __init__(self, tape: Tape, *, several: bool) -> None:
        self._tape, self._several = tape, several
        self._recorded: Counter[str] = Counter()

    def synchronize(self) -> None:
        """The host waits: all events that were recorded are complete."""
        if self._several:
            self._tape.mark(Kind.SYNCHRONIZE)
        self._recorded.clear()

    def before(self, name: str) -> None:
        """Another event of a sort is about to be recorded: too many in flight are waited for."""
        if self._recorded[name] > MOST_IN_FLIGHT:
            self.synchronize()

    def record(self, name: str) -> None:
        """An event is recorded."""
        self._recorded[name] += 1
