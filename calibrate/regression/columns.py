"""Columns and rows of ``cases.csv``: one row for each case of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrate.regression.baselines import BASELINES
from calibrate.regression.cases import COUNTERS
from calibrate.regression.document import case

if TYPE_CHECKING:
    from calibrate.regression.report import Report

COLUMNS = ("id", "name", "file", "line", "group", "model", "recipe", "engine", "data_parallel_size", "rank", "gpu",
           "measured_on", "date", "completion", "survived", "measured_moment", "predicted_moment", "capacity_bytes",
           "verdict", *(column.format(counter) for counter in COUNTERS for column in (
               "measured_{}_bytes", "predicted_{}_bytes", "{}_error")),
           *(f"{key}_bytes" for key in BASELINES))
"""Columns of ``cases.csv``; each is a key of a case in ``report.json``."""


def rows(report: Report) -> list[dict[str, Any]]:
    """The rows of ``cases.csv``: column -> value."""
    documents = [case(comparison, report.estimates.get(comparison.case.id, {})) for comparison in report.comparisons]
    return [{column: entry[column] for column in COLUMNS} for entry in documents]
