"""The tables of a regression report, with text in their cells. All forms of the report show the same tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.regression.baselines.grid import Grid
from calibrate.regression.cases import COUNTERS
from calibrate.regression.compare import Comparison
from calibrate.regression.document import buckets
from calibrate.regression.report import Report
from calibrate.regression.statistics import VERDICTS, Errors, Group
from calibrate.report.regression.words import method_name, percent
from predictor.report.units import GIB, gib


@dataclass(frozen=True)
class Table:
    """A table with text cells. Heads and rows have the same length.

    Attributes:
        title: title, which a screen reader reads first.
        texts: number of leading columns that are text; the others are numbers.
        last: whether the last row sums up the others.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    last: bool = False


ERRORS = ("cases", "MAPE", "median", "95th", "worst", "bias", "equal", "in 1 %", "in interval")


def overall(group: Group) -> Table:
    """Errors over all cases, with a row for each counter."""
    return Table("Errors by counter", ("error, %", *ERRORS), tuple(
        (counter, *_errors(errors)) for counter, errors in group.errors.items()))


def errors(groups: Sequence[Group], counter: str) -> Table:
    """Errors of one counter, with a row for each group."""
    return Table(f"Errors of {counter} peaks by group, %", ("by", "group", *ERRORS), tuple(
        (group.by, str(group.value), *_errors(group.errors[counter])) for group in groups if counter in group.errors),
        texts=2)


def _errors(errors: Errors) -> tuple[str, ...]:
    shares = map(percent, (errors.mape, errors.median, errors.p95, errors.worst, errors.bias))
    return (str(errors.cases), *shares, str(errors.exact), f"{errors.close:.1%}",
            "" if errors.inside is None else f"{errors.inside:.1%}")


def by_group(groups: Sequence[Group], short: bool = False) -> Table:
    """MAPE and worst error of each counter, and matching moments, with a row for each group.

    Args:
        short: only the last three counters, without moments.
    """
    counters = [counter for counter in COUNTERS if counter in groups[0].errors][-3 if short else 0:]
    heads = ("by", "group", "cases", *(f"{counter} {what}" for counter in counters for what in ("MAPE", "worst")),
             *(() if short else ("moments",)))
    return Table("Errors by group, %", heads, tuple(
        (group.by, str(group.value), str(group.cases),
         *(cell for counter in counters for cell in _mape_and_worst(group.errors.get(counter))),
         *(() if short else (f"{group.moment_hits}/{group.moments}" if group.moments else "",))) for group in groups),
        texts=2)


def _mape_and_worst(errors: Errors | None) -> tuple[str, str]:
    return (percent(errors.mape), percent(errors.worst)) if errors else ("", "")


def verdicts(groups: Sequence[Group]) -> Table:
    """Verdicts against outcomes, and xMem's figures, with a row for each group."""
    outcomes = [f"{verdict} {outcome}" for verdict in VERDICTS for outcome in ("survived", "died")]
    heads = ("by", "group", "cases", *outcomes, "PEF", "MCP GiB")
    return Table("Verdicts by group", tuple(head.replace("_", " ") for head in heads), tuple(
        (group.by, str(group.value), str(group.cases),
         *(str(outcome[verdict]) for verdict in VERDICTS for outcome in (group.verdicts.survived, group.verdicts.died)),
         "" if group.xmem.failure_probability is None else f"{group.xmem.failure_probability:.2%}",
         "" if group.xmem.conservation_bytes is None else f"{group.xmem.conservation_bytes / GIB:.2f}")
        for group in groups), texts=2)


def paper(grid: Grid) -> Table:
    """The paper's grid: each method's allocated peak of each job, and the MAPE of each over these jobs."""
    heads = ("recipe", "shape", "buckets", "GPUs", "measured", *map(method_name, grid.methods))
    jobs = [(row, row.case.workload) for row in grid.rows]
    rows = [(workload.recipe, f"{workload.per_device_train_batch_size}x{workload.sequence_length}", buckets(row.case),
             str(workload.data_parallel_size), gib(row.measured_bytes),
             *(_size(row.bytes(method)) for method in grid.methods))
            for row, workload in sorted(jobs, key=lambda job: (job[1].recipe, job[1].sequence_length,
                                                               job[1].data_parallel_size))]
    mape = [percent(errors.mape) if errors else "" for errors in grid.errors.values()]
    return Table("Allocated peaks of the paper's jobs, GiB", heads, (*rows, ("MAPE, %", "", "", "", "", *mape)),
                 texts=3, last=True)


def methods(grid: Grid) -> Table:
    """Errors of each method over all cases."""
    heads = ("method", "cases", "MAPE", "median", "worst", "bias", "in 1 %")
    return Table("Errors of allocated peaks by method, %", heads, tuple(
        (method_name(method), *(("0", "", "", "", "", "") if errors is None else
                                (str(errors.cases), percent(errors.mape), percent(errors.median), percent(errors.worst),
                                 percent(errors.bias), f"{errors.close:.1%}")))
        for method, errors in grid.errors.items()))


def cases(report: Report) -> Table:
    """Every case: peaks, errors and other methods' estimates."""
    others = report.grid.methods[1:]
    heads = ("case", "job", "moment", "verdict", "the job",
             *(f"{counter} {what}" for counter in COUNTERS[:3] for what in ("GiB", "error %")),
             *(f"{method_name(method)} GiB" for method in others))
    rows = tuple(_case(comparison, report, others) for comparison in report.comparisons)
    return Table("Every case", heads, rows, texts=5)


def _case(comparison: Comparison, report: Report, others: Sequence[str]) -> tuple[str, ...]:
    case = comparison.case
    estimates = report.estimates.get(case.id, {})
    return (case.id, case.name,
            comparison.moment if comparison.moment_hit is not False else f"{case.moment} (not {comparison.moment})",
            (comparison.verdict or "").replace("_", " "), "survived" if case.survived else "died",
            *(cell for counter in COUNTERS[:3] for cell in (_size(comparison.peaks[counter].measured_bytes),
                                                            percent(comparison.error(counter)))),
            *(_size(estimates[method].bytes) if method in estimates else "" for method in others))


def _size(size: int | None) -> str:
    return "" if size is None else gib(size)
