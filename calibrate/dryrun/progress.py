"""How far a dry run is: its phase, its optimizer step, and its allocated peak so far."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SUFFIX = ".progress"


class Phase(str, Enum):
    """The phases of a script, in order."""

    STARTING = "starting"
    IMPORTED = "imported"
    PREPARING = "preparing"
    STEPPING = "stepping"


PHASES = tuple(Phase)


@dataclass(frozen=True)
class Progress:
    """The state of a dry run.

    Attributes:
        phase: ``starting`` until PyTorch is imported, ``imported`` until the script uses the GPU, ``preparing`` until
            its first backward, then ``stepping``.
        step: the optimizer step that runs, from 1; 0 before.
        steps: the number after which the script is ended; None: it runs until its end.
        peak_bytes: allocated bytes, the most so far.
    """

    phase: Phase
    step: int = 0
    steps: int | None = None
    peak_bytes: int = 0


def read(directory: Path) -> Progress:
    """The state of the process that is furthest; of several, the one with the highest peak."""
    found = [Progress(Phase.STARTING)]
    for path in directory.glob(f"*{SUFFIX}"):
        state = json.loads(path.read_text(encoding="utf-8"))
        found.append(Progress(**state | {"phase": Phase(state["phase"])}))
    return max(found, key=lambda state: (PHASES.index(state.phase), state.step, state.peak_bytes))
