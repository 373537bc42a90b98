"""A baseline (somebody else's method) and its estimate of one workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from predictor.common.installing import pip_install
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class Estimate:
    """A method's estimate of the peak of one GPU in bytes; None with the reason ``why_not`` if it has none."""

    bytes: int | None
    why_not: str = ""


@dataclass(frozen=True)
class Baseline:
    """Somebody else's method.

    Attributes:
        name: short name for tables.
        source: publication, or the function that is called.
        counts: the memory that its number includes.
        does_not_count: the memory that it leaves out, and its assumptions.
        estimate: function from a workload to the estimate.
        slow: takes a minute or more for a model of billions of parameters.
    """

    name: str
    source: str
    counts: str
    does_not_count: str
    estimate: Callable[[Workload], Estimate]
    slow: bool = False


def not_installed(error: ImportError, extra: str) -> Estimate:
    """The estimate of a method whose library is not installed."""
    return Estimate(None, f"{error.name or error} is not installed: {pip_install(f'peakcast[{extra}]')}")
