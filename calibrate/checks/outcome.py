"""What a check came to: figures that a tolerance judges, files, and what the terminal shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrate.regression.report import Report


@dataclass(frozen=True)
class Outcome:
    """A figure holds if it is at most what the check's tolerance has under its name."""

    figures: Mapping[str, float] = field(default_factory=dict)
    written: Mapping[Path, str] = field(default_factory=dict)
    shown: tuple[Any, ...] = ()
    """Texts and tables of rich, in order."""
    report: Report | None = None
    """Of all jobs, shown after the rest."""

    def broken(self, tolerance: Mapping[str, float]) -> list[str]:
        """A line for each figure that is too large."""
        return [f"{name}: {found:g}, and at most {tolerance[name]:g} was to be"
                for name, found in self.figures.items() if found > tolerance[name]]
