"""Writes how far a process of a dry run is, for the command that waits for it."""

from __future__ import annotations

import json
import os
import time

from calibrate.dryrun.progress import SUFFIX, Phase

LEAST_SECONDS = 0.5
"""Time between two writes; a small script makes hundreds of steps in a second."""


class Progress:
    """Writes the file of this process. Without a directory it does nothing."""

    def __init__(self, directory: str | None, steps: int | None) -> None:
        self._path = directory and os.path.join(directory, f"{os.getpid()}{SUFFIX}")
        self._steps = steps
        self._written = 0.0
        self._phase: Phase | None = None

    def is_due(self, phase: Phase) -> bool:
        """Whether :meth:`write` would write."""
        return bool(self._path) and (phase is not self._phase or time.monotonic() - self._written >= LEAST_SECONDS)

    def write(self, phase: Phase, step: int = 0, peak_bytes: int = 0) -> None:
        """The process is in this phase, and at this step. ``peak_bytes`` is its allocated peak so far."""
        if not self._path or not self.is_due(phase):
            return
        self._phase, self._written = phase, time.monotonic()
        part = self._path + ".part"
        with open(part, "w", encoding="utf-8") as stream:
            json.dump({"phase": phase.value, "step": step, "steps": self._steps, "peak_bytes": peak_bytes}, stream)
        os.replace(part, self._path)
