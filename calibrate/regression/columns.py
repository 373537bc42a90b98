"""The cases of a report as rows of a table."""

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
"""Of ``cases.csv``: keys of a case in ``report.json``."""


def rows(made: Report) -> list[dict[str, Any]]:
    """The lines of ``cases.csv``, by column."""
    found = [case(one, made.estimates.get(one.case.id, {})) for one in made.comparisons]
    return [{column: one[column] for column in COLUMNS} for one in found]
