"""The tables of a regression report, as text in cells; every form draws the same."""

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
    """Heads and rows of one length; the first ``texts`` columns are text, the others numbers.

    Attributes:
        title: also what a screen reader says first.
        last: the last row sums up the others.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    last: bool = False


ERRORS = ("cases", "MAPE", "median", "95th", "worst", "bias", "equal", "in 1 %", "in interval")


def overall(group: Group) -> Table:
    """A row for each counter."""
    return Table("Errors by counter", ("error, %", *ERRORS), tuple(
        (counter, *_errors(one)) for counter, one in group.errors.items()))


def errors(groups: Sequence[Group], counter: str) -> Table:
    """A row for each group, of one counter."""
    return Table(f"Errors of {counter} peaks by group, %", ("by", "group", *ERRORS), tuple(
        (group.by, str(group.value), *_errors(group.errors[counter])) for group in groups if counter in group.errors),
        texts=2)


def _errors(one: Errors) -> tuple[str, ...]:
    return (str(one.cases), *map(percent, (one.mape, one.median, one.p95, one.worst, one.bias)), str(one.exact),
            f"{one.close:.1%}", "" if one.inside is None else f"{one.inside:.1%}")


def by_group(groups: Sequence[Group], short: bool = False) -> Table:
    """A row for each group: MAPE and worst of each counter, moments hit; ``short``: of three counters, no moments."""
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
    """A row for each group: what was said, what became of the jobs, and xMem's figures."""
    heads = ("by", "group", "cases", *(f"{said} {became}" for said in VERDICTS for became in ("survived", "died")),
             "PEF", "MCP GiB")
    return Table("Verdicts by group", tuple(head.replace("_", " ") for head in heads), tuple(
        (group.by, str(group.value), str(group.cases),
         *(str(became[said]) for said in VERDICTS for became in (group.verdicts.survived, group.verdicts.died)),
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
    """Each method over all cases."""
    heads = ("method", "cases", "MAPE", "median", "worst", "bias", "in 1 %")
    return Table("Errors of allocated peaks by method, %", heads, tuple(
        (method_name(method), *(("0", "", "", "", "", "") if one is None else
                                (str(one.cases), percent(one.mape), percent(one.median), percent(one.worst),
                                 percent(one.bias), f"{one.close:.1%}")))
        for method, one in grid.errors.items()))


def cases(made: Report) -> Table:
    """Every case: peaks, errors and what the other methods say."""
    others = made.grid.methods[1:]
    heads = ("case", "job", "moment", "verdict", "the job",
             *(f"{counter} {what}" for counter in COUNTERS[:3] for what in ("GiB", "error %")),
             *(f"{method_name(method)} GiB" for method in others))
    return Table("Every case", heads, tuple(_case(one, made, others) for one in made.comparisons), texts=5)


def _case(one: Comparison, made: Report, others: Sequence[str]) -> tuple[str, ...]:
    said = made.estimates.get(one.case.id, {})
    return (one.case.id, one.case.name,
            one.moment if one.moment_hit is not False else f"{one.case.moment} (not {one.moment})",
            (one.verdict or "").replace("_", " "), "survived" if one.case.survived else "died",
            *(cell for counter in COUNTERS[:3] for cell in (_size(one.peaks[counter].measured_bytes),
                                                            percent(one.error(counter)))),
            *(_size(said[method].bytes) if method in said else "" for method in others))


def _size(size: int | None) -> str:
    return "" if size is None else gib(size)
