"""The peaks of one moment of one step."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.events.events import MOMENTS, Moment


@dataclass(frozen=True)
class MomentPeaks:
    """Largest counters, in bytes, between two boundaries of the loop: ``moment`` of ``step`` (0 is start-up)."""

    step: int
    moment: Moment
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int

    @property
    def order(self) -> tuple[int, int]:
        """Sorts rows as they happen."""
        return self.step, MOMENTS.index(self.moment)
