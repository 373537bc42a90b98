"""When an event is complete: what decides how long a block used on several streams stays taken.

The emulated GPU offers the same three answers (calibrate/emulator/job_environment.py, ``events``); a real GPU lies
between the first and the last.
"""

from __future__ import annotations

from predictor.common.errors import InputError

#: Number of launches that stand for: only a synchronisation completes an event.
NEVER = -1


def launches_until_complete(completion: str) -> int:
    """0 for "immediate", N for "launches:N", NEVER for "synchronization"."""
    if completion == "immediate":
        return 0
    if completion == "synchronization":
        return NEVER
    kind, _, count = completion.partition(":")
    if kind == "launches" and count.isascii() and count.isdigit() and int(count):
        return int(count)
    raise InputError(f'completion: "{completion}" is none of immediate, launches:N, synchronization')


class Clock:
    """Counts kernel launches and synchronisations; an event is a reading of both."""

    __slots__ = ("wait", "launches", "synchronizations")

    def __init__(self, completion: str) -> None:
        self.wait = launches_until_complete(completion)
        self.launches = 0
        self.synchronizations = 0

    def record(self) -> tuple[int, int]:
        return self.launches, self.synchronizations

    def is_complete(self, event: tuple[int, int]) -> bool:
        launches, synchronizations = event
        if self.wait == 0 or self.synchronizations > synchronizations:
            return True
        return self.wait > 0 and self.launches - launches >= self.wait
