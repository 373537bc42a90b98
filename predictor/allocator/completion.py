"""Rules for the completion of CUDA events. They decide how long a block used on several streams stays pending.

The emulated GPU has the same rules (``events`` in calibrate/emulator/job_environment.py). On a real GPU, events
complete later than with "immediate" and earlier than with "synchronization".
"""

from __future__ import annotations

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted

#: Special number of launches: only a synchronisation completes an event.
NEVER = -1


def launches_until_complete(completion: str, key: str = "completion") -> int:
    """The number of kernel launches after which an event completes.

    0 for "immediate", N for "launches:N", NEVER for "synchronization".

    Args:
        key: what the user calls the rule, for the message.

    Raises:
        InputError: it is none of these.
    """
    if completion == "immediate":
        return 0
    if completion == "synchronization":
        return NEVER
    rule, _, count = completion.partition(":")
    if rule == "launches" and count.isascii() and count.isdigit() and int(count):
        return int(count)
    raise InputError(f"{key}: {quoted(completion)} is not one of immediate, launches:N, synchronization")


class Clock:
    """Counts kernel launches and synchronisations. An event stores both counts at its recording."""

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
