"""The whole report as data, made from files of measurements."""

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
from calibrate.regression.compare import Comparison, compare
from calibrate.regression.histories import History
from calibrate.regression.statistics import Group
from predictor.common.errors import InputError
from predictor.workload.workload import Workload

if TYPE_CHECKING:
    import pandas

PAPER = "paper"
"""Group of the jobs that arXiv 2512.07853 evaluates: LLaVA-1.5-7B, two shapes, degrees 1 to 8."""


@dataclass(frozen=True)
class Report:
    """Everything that a report shows; whoever draws or prints it computes nothing more.

    Attributes:
        comparisons: each measurement beside its prediction, in the order of the files.
        skipped: measurements that do not count, by name, with the reason: unreadable, repeated, not predictable.
        groups: ``groups[0]`` is of all cases; then those of each value of each label of ``cases.LABELS``.
        explained: the cases that are furthest off, the worst first.
        history: both peaks by factor of the worst case that has a memory history; None if none has.
        grid: allocated peaks beside those of other methods; beside none unless some were asked.
    """

    comparisons: tuple[Comparison, ...]
    skipped: tuple[Skipped, ...]
    groups: tuple[Group, ...]
    explained: tuple[Explained, ...]
    history: History | None = None
    grid: Grid = Grid()

    @property
    def overall(self) -> Group:
        """Of all cases."""
        return self.groups[0]

    @property
    def paper(self) -> Grid:
        """The jobs of the paper's grid."""
        return self.grid.jobs(PAPER)

    @cached_property
    def estimates(self) -> Mapping[str, Mapping[str, Estimate]]:
        """What other methods say of a case, by its id."""
        return {row.case.id: row.estimates for row in self.grid.rows}

    def to_frame(self) -> pandas.DataFrame:
        """A row for each case with the columns of ``cases.csv`` (needs pandas)."""
        import pandas

        from calibrate.regression.columns import COLUMNS, rows

        return pandas.DataFrame(rows(self), columns=COLUMNS)


def make(cases: Sequence[Case], skipped: Iterable[Skipped] = (), *, profile: str | None = None, worst: int = 3,
         said: Callable[[Workload], Mapping[str, Estimate]] | None = None,
         progress: Callable[[Sequence, str], Iterable] | None = None) -> Report:
    """Predict all cases and sum up.

    Args:
        profile: as :func:`calibrate.regression.compare.compare`.
        worst: how many of the worst cases are explained at least.
        said: what other methods say of a workload, such as ``baselines.estimates``; None asks nobody.
        progress: wraps what there is to do, under a name for it, for example with a progress bar.

    Raises:
        InputError: none of them can be predicted.
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
                  tuple(causes.explain(comparisons, worst)), histories.first(comparisons),
                  grid(progress(comparisons, "Asking others") if progress and said else comparisons, said))
