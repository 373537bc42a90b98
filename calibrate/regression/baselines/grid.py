"""Allocated peaks of cases: measured, predicted, and estimated by other methods, with their errors."""

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
"""Key of peakcast's prediction among the methods."""


@dataclass(frozen=True)
class Row:
    """Allocated peaks in bytes of one GPU, for one case, or for one job by its highest rank.

    Attributes:
        estimates: key of ``BASELINES`` -> estimate.
    """

    case: Case
    measured_bytes: int
    predicted_bytes: int
    estimates: Mapping[str, Estimate]

    def bytes(self, method: str) -> int | None:
        """The peak in bytes by :data:`OURS` or a key of ``estimates``; None if that method has none."""
        return self.predicted_bytes if method == OURS else self.estimates[method].bytes

    def error(self, method: str) -> float | None:
        """(estimated - measured) / measured; None if the method has no estimate."""
        estimated = self.bytes(method)
        return None if estimated is None else (estimated - self.measured_bytes) / self.measured_bytes


@dataclass(frozen=True)
class Grid:
    """Rows of allocated peaks, and each method's errors."""

    rows: tuple[Row, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """:data:`OURS`, then the other methods that were estimated."""
        return (OURS, *(self.rows[0].estimates if self.rows else ()))

    @property
    def errors(self) -> dict[str, Errors | None]:
        """Errors by method, over the rows that it has an estimate of; None if there is no such row."""
        by_method = {method: [(row.case.id, error) for row in self.rows
                              if (error := row.error(method)) is not None]
                     for method in self.methods}
        return {method: statistics.errors(errors) if errors else None for method, errors in by_method.items()}

    def jobs(self, group: str) -> Grid:
        """A row for each job of a group. Measured and predicted bytes are the highest over its ranks and over both
        completions of CUDA events."""
        parts: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.case.group == group:
                job = row.case.workload.resolved() | {"rank": None}
                parts.setdefault(json.dumps([job, row.case.measured_on], sort_keys=True), []).append(row)
        return Grid(tuple(
            replace(max(rows, key=lambda row: row.measured_bytes), predicted_bytes=max(r.predicted_bytes for r in rows))
            for rows in parts.values()))


def grid(comparisons: Iterable[Comparison], estimates: Callable[[Workload], Mapping[str, Estimate]] | None = None
         ) -> Grid:
    """The grid of the cases that ran to their end.

    Args:
        comparisons: measured cases with their predictions.
        estimates: function from a workload to other methods' estimates, such as ``baselines.estimates``; None: none.
    """
    return Grid(tuple(Row(comparison.case, *comparison.peaks["allocated"].both_bytes,
                          estimates(comparison.case.workload) if estimates else {})
                      for comparison in comparisons if comparison.error("allocated") is not None))
