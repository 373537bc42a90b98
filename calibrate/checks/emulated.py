"""Measure a fixed set of jobs on the emulated H100 and compare them with the predictions.

    pip install -e '.[test]'
    python scripts/check.py emulated                 # all jobs, about half an hour on two cores
    python scripts/check.py emulated --again 20      # measures 20 saved jobs again: are the peaks equal?
    python scripts/check.py emulated --table-only    # the table of the saved results, a minute

No GPU is needed. Measurements go to profiles/h100-80gb/emulated.jsonl, one line per job. Jobs in that file are not run
again, so an interrupted run goes on where it stopped. Delete the file to start over. Predictions are computed each
time.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass

from rich.table import Table

from calibrate.checks import emulated_jobs
from calibrate.checks.directories import H100
from calibrate.checks.measured_peaks import COUNTERS, measured
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Kept, Row, bar, compact_row
from calibrate.regression import files, report

FILE = H100 / "emulated.jsonl"


@dataclass(frozen=True)
class Measurements:
    """All rows, and with ``--again`` each row that was measured twice, with its second measurement."""

    rows: list[Row]
    again: list[tuple[Row, Row]]


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--again", type=int, default=0, metavar="N", help="measure N saved jobs again and compare")


def jobs(args: Namespace) -> list[Row]:
    return [{"group": group, "job": job} for group, job in emulated_jobs.all_jobs()]


def measure(jobs: list[Row], args: Namespace) -> Measurements:
    rows = Kept(FILE, compact_row(measured))(jobs, args)
    chosen = rows[:: max(1, len(rows) // args.again)][: args.again] if args.again else []
    return Measurements(rows, [(row, measured(row["job"])) for row in bar(chosen, "Measuring again")])


def table(measurements: Measurements, args: Namespace) -> Outcome:
    """The jobs that were measured twice with ``--again``, else every job beside its prediction."""
    return repeated(measurements.again) if args.again else compared()


def repeated(pairs: list[tuple[Row, Row]]) -> Outcome:
    """Compares two measurements of each job to the byte."""
    names = [f"{name}_bytes" for name in COUNTERS]
    differ = [(once, again) for once, again in pairs if any(once[name] != again[name] for name in names)]
    lines = [f"differs: {json.dumps(once['job'])} {[(once[name], again[name]) for name in names]}"
             for once, again in differ]
    return Outcome({"jobs whose peaks differ": len(differ)},
                   shown=(*lines, f"{len(pairs)} jobs measured again, {len(differ)} differ"))


def compared() -> Outcome:
    """The regression report of all rows, and a table of each job's errors."""
    result = report.make(*files.read([FILE]), progress=bar)
    rows = Table("group", "job", "moment", "measured GiB", *(f"{name} error %" for name in COUNTERS))
    for comparison in result.comparisons:
        case, size = comparison.case, comparison.peaks["requested"].measured_bytes
        errors = [comparison.error(name) for name in COUNTERS]
        assert size is not None and None not in errors  # rows of this file are of jobs that ran to their end
        moment = comparison.moment if comparison.moment_hit else f"{case.moment} (not {comparison.moment})"
        rows.add_row(case.group, case.name, moment, f"{size / 2**30:.3f}",
                     *(f"{100 * error:+.5f}" for error in errors if error is not None))
    missed = result.overall.moments - result.overall.moment_hits
    return Outcome({"peaks in another moment": missed}, shown=(rows,), report=result)
