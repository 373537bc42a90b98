"""Measure jobs of every recipe, engine, optimizer, precision and loss on the emulated H100, and compare predictions.

    pip install -e '.[test]'
    python scripts/check.py recipes                # measures missing jobs, then the table: about an hour
    python scripts/check.py recipes --table-only   # the table of the saved results: traces formulas, some minutes

No GPU is needed. The jobs are in calibrate/checks/recipes.json, grouped by the feature that they cover. Measurements go
to profiles/evidence/recipes.jsonl, one line per job. Jobs in that file are not run again. The table,
profiles/pages/recipes.md, also has the rows of profiles/h100-80gb/emulated.jsonl that cover such a feature.
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
LIMITS = {"allocated": 0.01, "reserved": 0.05}
"""Counter -> relative error above which a job is named on stderr."""
HEAD = """# Every recipe, measured and predicted

Peaks in bytes of jobs on the emulated H100 (400 GiB of memory, so that each is measured to its end), and predicted less
measured. Made by `python scripts/check.py recipes` on {date} from `evidence/recipes.jsonl` and
`h100-80gb/emulated.jsonl`, which have the date and software of each measurement. {jobs} jobs: allocated off by at most
{allocated:.4%}, reserved by at most {reserved:.4%}.

| line | job | requested | off by | allocated | off by | reserved | off by |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def jobs(args: Namespace) -> list[Row]:
    """The jobs of the JSON list beside this module."""
    return results_file.listed(__file__)


measure = results_file.Kept(FILE, results_file.compact_row(measured_peaks.measured))


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The page of all measured jobs beside predictions."""
    cases, _ = measured_peaks.cases(FILE, H100 / "emulated.jsonl")
    groups = {group for group, _ in emulated_jobs.recipes()} | {job["group"] for job in jobs(args)}
    comparisons = measured_peaks.compared([case for case in cases if case.group in groups], by=lambda case: case.group)
    for comparison in comparisons:
        if any(measured_peaks.absolute_error(comparison, counter) > limit for counter, limit in LIMITS.items()):
            print(f"too far off: {measured_peaks.line_of(comparison)}", file=sys.stderr)
    worst = measured_peaks.worst(comparisons, tuple(LIMITS))
    head = HEAD.format(date=date.today().isoformat(), jobs=len(comparisons), **worst)
    return Outcome(worst, {PAGE: head + "".join(map(measured_peaks.line_of, comparisons))})
