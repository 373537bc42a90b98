"""Measure jobs of every recipe, engine, optimizer, precision and loss on the emulated H100, beside predictions.

    pip install -e '.[test]'
    python scripts/check.py recipes                # what is not measured yet, then the table: about an hour
    python scripts/check.py recipes --table-only   # the table from what is saved: some minutes, formulas are traced

No GPU is needed. The jobs are those of calibrate/checks/recipes.json, by what they stand for; what was measured goes to
profiles/evidence/recipes.jsonl, one line a job; jobs that are there are not run again. The table,
profiles/pages/recipes.md, has them and the rows of profiles/h100-80gb/emulated.jsonl that stand for a recipe.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import date

from calibrate.checks import emulated_jobs, measured_peaks, results_file
from calibrate.checks.directories import EVIDENCE, H100, PAGES
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Row

FILE, PAGE = EVIDENCE / "recipes.jsonl", PAGES / "recipes.md"
LOOKED_AT = {"allocated": 0.01, "reserved": 0.05}
"""Errors from which on a job is named."""
HEAD = """# Every recipe, measured and predicted

Peaks in bytes of jobs on the emulated H100 (400 GiB of memory, so that each is measured to its end), and predicted less
measured. Made by `python scripts/check.py recipes` on {date} from `evidence/recipes.jsonl` and
`h100-80gb/emulated.jsonl`, which have the date and software of each measurement. {jobs} jobs: allocated off by at most
{allocated:.4%}, reserved by at most {reserved:.4%}.

| line | job | requested | off by | allocated | off by | reserved | off by |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def jobs(given: Namespace) -> list[Row]:
    return results_file.listed(__file__)


measure = results_file.Kept(FILE, results_file.compact_row(measured_peaks.measured))


def table(rows: list[Row], given: Namespace) -> Outcome:
    """All measured jobs beside predictions."""
    cases, _ = measured_peaks.cases(FILE, H100 / "emulated.jsonl")
    groups = {group for group, _ in emulated_jobs.recipes()} | {asked["group"] for asked in jobs(given)}
    found = measured_peaks.compared([case for case in cases if case.group in groups], by=lambda case: case.group)
    for one in found:
        if any(abs(one.error(counter)) > most for counter, most in LOOKED_AT.items()):
            print(f"too far off: {measured_peaks.line_of(one)}", file=sys.stderr)
    worst = measured_peaks.worst(found, tuple(LOOKED_AT))
    head = HEAD.format(date=date.today().isoformat(), jobs=len(found), **worst)
    return Outcome(worst, {PAGE: head + "".join(map(measured_peaks.line_of, found))})
