"""The whole regression report as data: comparisons, groups, explanations, and other methods' estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from calibrate.regression import causes, histories, statistics
from calibrate.regression.baselines import Estimate
from calibrate.regression.baselines.grid import Grid, grid
from calibrate.regression.cases import Case, Skipped
from calibrate.regression.causes import Explained
from calibrate.regression.columns import COLUMNS, rows
from calibrate.regression.compare import Comparison, compare
from calibrate.regression.histories import History
from calibrate.regression.statistics import Group
from predictor.common.errors import InputError
from predictor.workload.workload import Workload

if TYPE_CHECKING:
    import pandas

PAPER = "paper"
"""Group of the jobs that arXiv 2512.07853 evaluates: LLaVA-1.5-7B, two shapes, data-parallel degrees 1 to 8."""


@dataclass(frozen=True)
class Report:
    """Everything that a report shows. Drawing and printing compute nothing more.

    Attributes:
        comparisons: each measurement with its prediction, in the order of the files.
        skipped: measurements that do not count, with the reason: unreadable, repeated, or not predictable.
        groups: ``groups[0]`` has all cases; the others have one value of one label of ``cases.LABELS`` each.
        explained: the cases with the largest errors, worst first.
        history: both peaks by factor of the worst case that has a memory history; None if none has.
        grid: allocated peaks, with the estimates of other methods if these were requested.
        real_gpus: what other people's measurements on real GPUs say of the predictions, in one sentence.
    """

    comparisons: tuple[Comparison, ...]
    skipped: tuple[Skipped, ...]
    groups: tuple[Group, ...]
    explained: tuple[Explained, ...]
    history: History | None = None
    grid: Grid = Grid()
    real_gpus: str = ""

    @property
    def overall(self) -> Group:
        """The group of all cases."""
        return self.groups[0]

    @property
    def paper(self) -> Grid:
        """The jobs of the paper's grid."""
        return self.grid.jobs(PAPER)

    @cached_property
    def estimates(self) -> Mapping[str, Mapping[str, Estimate]]:
        """Id of a case -> other methods' estimates of it."""
        return {row.case.id: row.estimates for row in self.grid.rows}

    def to_frame(self) -> pandas.DataFrame:
        """A data frame with a row for each case and the columns of ``cases.csv`` (needs pandas)."""
        import pandas

        return pandas.DataFrame(rows(self.comparisons, self.estimates), columns=COLUMNS)


def make(cases: Sequence[Case], skipped: Iterable[Skipped] = (), *, profile: str | None = None, worst: int = 3,
         said: Callable[[Workload], Mapping[str, Estimate]] | None = None,
         progress: Callable[[Sequence, str], Iterable] | None = None) -> Report:
    """Predicts all cases and makes the report.

    Args:
        profile: as :func:`calibrate.regression.compare.compare`.
        worst: least number of worst cases to explain.
        said: function from a workload to other methods' estimates, such as ``baselines.estimates``; None: no estimates.
        progress: wraps a sequence of tasks under a title, for example with a progress bar.

    Raises:
        InputError: no case can be predicted.
    """
    left_out = list(skipped)
    comparisons = []
    for case in progress(cases, "Predicting") if progress else cases:
        try:
            comparisons.append(compare(case, profile))
        except InputError as error:
            left_out.append(Skipped(case.file, case.line, f"not predicted: {' '.join(str(error).split())}", case.id))
    if not comparisons:
        last = left_out[-1]
        raise InputError(f"none of {len(cases)} measurements can be predicted: {last.source}: {last.why}")
    return Report(tuple(comparisons), tuple(left_out), tuple(statistics.groups(comparisons)),
                  tuple(causes.explain(comparisons, worst)), histories.of_worst_case(comparisons),
                  grid(progress(comparisons, "Estimating") if progress and said else comparisons, said))
