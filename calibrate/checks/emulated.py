"""Measure a fixed set of jobs on the emulated H100 and put the predictions beside them.

    pip install -e '.[test]'
    python scripts/check.py emulated                 # all jobs, about half an hour on two cores
    python scripts/check.py emulated --again 20      # 20 saved jobs once more: are the peaks the same to the byte?
    python scripts/check.py emulated --table-only    # the table of the saved results, a minute

No GPU is needed. What was measured goes to profiles/h100-80gb/emulated.jsonl, one line a job; jobs that are there
are not run again, so an interrupted run goes on where it was. Delete the file to begin anew. Predictions are made
anew each time.
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
class Found:
    """All rows, and of ``--again`` those that were measured twice, with their second measurement."""

    rows: list[Row]
    again: list[tuple[Row, Row]]


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--again", type=int, default=0, metavar="N", help="measure N saved jobs again and compare")


def jobs(given: Namespace) -> list[Row]:
    return [{"group": group, "job": job} for group, job in emulated_jobs.all_jobs()]


def measure(jobs: list[Row], given: Namespace) -> Found:
    rows = Kept(FILE, compact_row(measured))(jobs, given)
    chosen = rows[:: max(1, len(rows) // given.again)][: given.again] if given.again else []
    return Found(rows, [(row, measured(row["job"])) for row in bar(chosen, "Measuring again")])


def table(found: Found, given: Namespace) -> Outcome:
    return repeated(found.again) if given.again else compared()


def repeated(pairs: list[tuple[Row, Row]]) -> Outcome:
    """Saved jobs whose peaks differ by a byte or more when they are measured again."""
    names = [f"{name}_bytes" for name in COUNTERS]
    differ = [(once, again) for once, again in pairs if any(once[name] != again[name] for name in names)]
    shown = [f"differs: {json.dumps(once['job'])} {[(once[name], again[name]) for name in names]}"
             for once, again in differ]
    return Outcome({"jobs whose peaks differ": len(differ)},
                   shown=(*shown, f"{len(pairs)} jobs measured again, {len(differ)} differ"))


def compared() -> Outcome:
    """The report of all rows, each with its errors."""
    found = report.make(*files.read([FILE]), progress=bar)
    shown = Table("group", "job", "moment", "measured GiB", *(f"{name} error %" for name in COUNTERS))
    for one in found.comparisons:
        moment = one.moment if one.moment_hit else f"{one.case.moment} (not {one.moment})"
        shown.add_row(one.case.group, one.case.name, moment, f"{one.peaks['requested'].measured_bytes / 2**30:.3f}",
                      *(f"{100 * one.error(name):+.5f}" for name in COUNTERS))
    missed = found.overall.moments - found.overall.moment_hits
    return Outcome({"peaks in another moment": missed}, shown=(shown,), report=found)
