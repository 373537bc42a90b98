"""Plays the allocations of a dry run that ran out of memory with expandable segments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from predictor.common.errors import InputError
from predictor.snapshot import read
from predictor.snapshot.replay import settings_of
from predictor.snapshot.what_if import what_if

DEVICE = 0
"""Index of the only GPU that a dry run shows to its process."""
NO_HISTORY = "the script allocated too often, or its process was killed"


@dataclass(frozen=True)
class Played:
    """The same allocations with expandable segments, on the same device.

    Attributes:
        survives: whether none fails.
        reserved_bytes: the reserved peak if none fails; else what was reserved when the first failed, and what that
            asked for.
    """

    survives: bool
    reserved_bytes: int


def played(history: Path) -> tuple[Played | None, str]:
    """Plays the history that a dry run wrote (:mod:`calibrate.dryrun.hooks.allocations`).

    Returns:
        The result, or None and the reason why there is none.
    """
    if not history.exists():
        return None, NO_HISTORY
    try:
        snapshot = read(history)
        settings = settings_of(snapshot.settings)
        if settings.expandable_segments:
            return None, "the script has them already"
        result = what_if(snapshot, DEVICE, replace(settings, expandable_segments=True))
    except InputError as error:
        return None, str(error)
    if result.failure is None:
        return Played(True, result.peak_reserved_bytes), ""
    return Played(False, result.failure.reserved_bytes + result.failure.tried_to_allocate_bytes), ""
