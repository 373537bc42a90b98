"""Measured memory peaks of one moment of one training step."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.events.events import MOMENTS, Moment


@dataclass(frozen=True)
class MomentPeaks:
    """The largest values of the counters during ``moment`` of ``step``, in bytes. Step 0 is start-up."""

    step: int
    moment: Moment
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: the order in time."""
        return self.step, MOMENTS.index(self.moment)
