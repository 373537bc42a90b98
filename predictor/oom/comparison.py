"""Compares a reported out-of-memory error with the predicted one, number by number."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.answer.failure import LimitOutcome
from predictor.oom.amounts import Amount
from predictor.oom.explanation import Explanation


@dataclass(frozen=True)
class Compared:
    """One number of a message and its prediction."""

    name: str
    reported: Amount
    predicted_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Predicted minus reported."""
        return self.predicted_bytes - self.reported.bytes

    @property
    def agrees(self) -> bool:
        """Whether the message would print the predicted number as it prints the reported one."""
        return self.reported.may_be(self.predicted_bytes)


def compare(explanation: Explanation, outcome: LimitOutcome) -> tuple[Compared, ...]:
    """The numbers that both the message and the prediction have. Without a predicted failure these are the peaks."""
    message, failure = explanation.message, outcome.failure
    predicted = [("tried to allocate", message.requested, outcome.segment_bytes),
                 ("allocated", message.allocated,
                  outcome.peak_allocated_bytes if failure is None else failure.allocated_bytes),
                 ("reserved", message.reserved,
                  outcome.peak_reserved_bytes if failure is None else failure.reserved_bytes)]
    return tuple(Compared(name, reported, size) for name, reported, size in predicted
                 if reported is not None and size is not None)


def agree(compared: tuple[Compared, ...], outcome: LimitOutcome) -> bool:
    """Whether the predicted failure is the reported one."""
    return outcome.failure is not None and all(item.agrees for item in compared)
