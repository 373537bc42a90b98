"""Columns and rows of ``cases.csv``: one row for each case of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from calibrate.regression.baselines import BASELINES, Estimate
from calibrate.regression.case_document import case
from calibrate.regression.cases import COUNTERS
from calibrate.regression.compare import Comparison

COLUMNS = ("id", "name", "file", "line", "group", "model", "recipe", "engine", "data_parallel_size", "rank", "gpu",
           "measured_on", "date", "completion", "survived", "measured_moment", "predicted_moment", "capacity_bytes",
           "verdict", *(column.format(counter) for counter in COUNTERS for column in (
               "measured_{}_bytes", "predicted_{}_bytes", "{}_error")),
           *(f"{key}_bytes" for key in BASELINES))
"""Columns of ``cases.csv``; each is a key of a case in ``report.json``."""


def rows(comparisons: Iterable[Comparison], estimates: Mapping[str, Mapping[str, Estimate]]) -> list[dict[str, Any]]:
    """The rows of ``cases.csv``, each as column -> value.

    Args:
        estimates: id of a case -> other methods' estimates of it.
    """
    documents = [case(comparison, estimates.get(comparison.case.id, {})) for comparison in comparisons]
    return [{column: entry[column] for column in COLUMNS} for entry in documents]
