"""Metamorphic relations: what must hold between answers about related jobs, whatever their numbers are.

    python -m tests.attack.relations KIND FIRST ROUNDS [--until-first]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from tests.attack import answers, frameworks, optimizer_states, predictions
from tests.attack.rounds import Round

KINDS: dict[str, Callable[[int], Round]] = {
    "prediction": predictions.play, "shipped": predictions.of_shipped, "page": answers.page, "reader": answers.reader, "adapters": answers.adapters, "fresh trace": answers.fresh_trace,
    "framework": frameworks.play, "optimizer states": optimizer_states.play}
"""Kind of round -> what plays one. A round is decided by its number."""


def rounds(kind: str, first: int, count: int, until_first: bool = False) -> dict[str, Any]:
    """Plays rounds, and adds up what they found. A round that raises is a violation."""
    found = Round()
    for number in range(first, first + count):
        before = len(found.violations)
        try:
            found.add(KINDS[kind](number))
        except Exception as error:
            found.check("a round ends", False, error=f"{type(error).__name__}: {error}"[:1000])
        for violation in found.violations[before:]:
            violation["round"] = number
        if found.violations and until_first:
            break
    return {"checked": dict(found.checked), "violations": found.violations, "models": sorted(found.models), "unanswered": sorted(found.asked - found.models)}


if __name__ == "__main__":
    print(json.dumps(rounds(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "--until-first" in sys.argv), default=str))
