"""The result of a check: figures that a tolerance judges, files to write, and terminal output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrate.regression.report import Report


@dataclass(frozen=True)
class Outcome:
    """The result of a check.

    Attributes:
        figures: name -> value. The check's tolerance may have a maximum under the same name.
        written: path -> text of the files to write.
        shown: texts and rich tables for the terminal, in order.
        report: a regression report of all jobs, shown after the rest.
    """

    figures: Mapping[str, float] = field(default_factory=dict)
    written: Mapping[Path, str] = field(default_factory=dict)
    shown: tuple[Any, ...] = ()
    report: Report | None = None

    def broken(self, tolerance: Mapping[str, float]) -> list[str]:
        """A line for each figure that exceeds its tolerance."""
        return [f"{name} is {value:g}: must be at most {tolerance[name]:g}"
                for name, value in self.figures.items() if value > tolerance[name]]
