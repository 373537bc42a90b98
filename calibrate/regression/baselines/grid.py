"""Allocated peaks as measured, as predicted, and as every other method has them; and how far each is off."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from calibrate.regression import statistics
from calibrate.regression.baselines.baseline import Estimate
from calibrate.regression.cases import Case
from calibrate.regression.compare import Comparison
from calibrate.regression.statistics import Errors
from predictor.workload.workload import Workload

OURS = "peakcast"
"""Key of the prediction among methods."""


@dataclass(frozen=True)
class Row:
    """One case, or one job by its highest rank: allocated bytes of one GPU; ``estimates`` by the keys of ``BASELINES``.
    """

    case: Case
    measured_bytes: int
    predicted_bytes: int
    estimates: Mapping[str, Estimate]

    def bytes(self, method: str) -> int | None:
        """What :data:`OURS` or a key of ``estimates`` says; None where it says nothing."""
        return self.predicted_bytes if method == OURS else self.estimates[method].bytes

    def error(self, method: str) -> float | None:
        """(said - measured) / measured; None where the method says nothing."""
        said = self.bytes(method)
        return None if said is None else (said - self.measured_bytes) / self.measured_bytes


@dataclass(frozen=True)
class Grid:
    """The rows; ``errors`` of each method over those that it says something of (None: of none)."""

    rows: tuple[Row, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """:data:`OURS`, then those that were asked."""
        return (OURS, *(self.rows[0].estimates if self.rows else ()))

    @property
    def errors(self) -> dict[str, Errors | None]:
        """By method."""
        found = {method: [(row.case.id, error) for row in self.rows if (error := row.error(method)) is not None]
                 for method in self.methods}
        return {method: statistics.errors(errors) if errors else None for method, errors in found.items()}

    def jobs(self, group: str) -> Grid:
        """A row for each job of a group: measured and predicted each where most is, of its ranks and of when events
        complete."""
        parts: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.case.group == group:
                job = row.case.workload.resolved() | {"rank": None}
                parts.setdefault(json.dumps([job, row.case.measured_on], sort_keys=True), []).append(row)
        return Grid(tuple(
            replace(max(rows, key=lambda row: row.measured_bytes), predicted_bytes=max(r.predicted_bytes for r in rows))
            for rows in parts.values()))


def grid(comparisons: Iterable[Comparison], said: Callable[[Workload], Mapping[str, Estimate]] | None = None) -> Grid:
    """The cases that ran to their end.

    Args:
        comparisons: measured beside predicted.
        said: what other methods say of a workload, such as ``baselines.estimates``; None asks nobody.
    """
    peaks = ((one.case, one.peaks["allocated"]) for one in comparisons if one.error("allocated") is not None)
    return Grid(tuple(Row(case, peak.measured_bytes, peak.predicted_bytes, said(case.workload) if said else {})
                      for case, peak in peaks))
