"""What a baseline is, and what it says of one workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from predictor.workload.workload import Workload


@dataclass(frozen=True)
class Estimate:
    """The peak of one GPU in bytes as a method would have it; None with the reason where it says nothing."""

    bytes: int | None
    why_not: str = ""


@dataclass(frozen=True)
class Baseline:
    """Somebody else's method.

    Attributes:
        name: short, for tables.
        source: who published it and where, or the function that is called.
        counts: what its number holds.
        does_not_count: what it leaves out, and what it takes for granted.
        estimate: its number for a workload.
        slow: takes a minute or more for a model of billions of parameters.
    """

    name: str
    source: str
    counts: str
    does_not_count: str
    estimate: Callable[[Workload], Estimate]
    slow: bool = False


def not_installed(error: ImportError, extra: str) -> Estimate:
    """No answer, as a library is missing."""
    return Estimate(None, f"{error.name or error} is not installed: pip install 'peakcast[{extra}]'")
