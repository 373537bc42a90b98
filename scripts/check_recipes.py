#!/usr/bin/env python3
"""Measure jobs of every recipe, engine, optimizer, precision and loss on the emulated H100, beside predictions.

    pip install -e '.[test]'
    python scripts/check_recipes.py                # what is not measured yet, then the table: about an hour
    python scripts/check_recipes.py --table-only   # the table from what is saved: some minutes, formulas are traced

No GPU is needed. The jobs are those of scripts/recipes.json, by what they stand for; what was measured goes to
profiles/checks/recipes.jsonl, one line a job; jobs that are there are not run again. The table, profiles/recipes.md,
has them and the rows of profiles/h100-80gb/emulated.jsonl that stand for a recipe. Exit code 1: a prediction is off by
more than 1 % of allocated or 5 % of reserved bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

from compare_emulated import TARGET as EMULATED
from compare_emulated import recipes, run
from rich.console import Console
from rich.progress import track

from calibrate.regression import compact, files
from calibrate.regression.compare import Comparison, compare
from predictor.common.errors import InputError

HERE = Path(__file__).resolve().parent
JOBS = HERE / "recipes.json"
TARGET = HERE.parent / "profiles" / "checks" / "recipes.jsonl"
TABLE = HERE.parent / "profiles" / "recipes.md"
MOST = {"allocated": 0.01, "reserved": 0.05}
"""Errors, as fractions."""
HEAD = """# Every recipe, measured and predicted

Peaks in bytes of jobs on the emulated H100 (400 GiB of memory, so that each is measured to its end), and predicted less
measured. Made by `python scripts/check_recipes.py` on {date} from `checks/recipes.jsonl` and
`h100-80gb/emulated.jsonl`, which have the date and software of each measurement. {jobs} jobs: allocated off by at most
{allocated:.4%}, reserved by at most {reserved:.4%}.

| line | job | requested | off by | allocated | off by | reserved | off by |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def main() -> int:
    measure_missing(__doc__, JOBS, TARGET)
    return write_table()


def measure_missing(description: str, jobs: Path, target: Path, measured: Callable[[dict], dict] = run) -> None:
    """Append a row for each job of a list that has none yet, by what it stands for; nothing with ``--table-only``.
    ``measured`` gives what was found."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    if parser.parse_args().table_only:
        return
    rows = [json.loads(line) for line in target.read_text().splitlines()] if target.is_file() else []
    known = [row["job"] for row in rows]
    missing = [(line, job) for line, group in json.loads(jobs.read_text()).items() for job in group if job not in known]
    for line, job in bar(missing, "Measuring"):
        try:
            row = compact.row(job, measured(job), group=line)
        except InputError as error:
            print(f"{json.dumps(job)}: {error}", file=sys.stderr)
            continue
        with target.open("a") as stream:
            stream.write(json.dumps(row) + "\n")


def write_table() -> int:
    """The table of all measured jobs; 1 if a prediction is too far off."""
    cases, skipped = files.read([TARGET, EMULATED])
    for one in skipped:
        print(f"{one.source}: {one.why}", file=sys.stderr)
    groups = {group for group, _ in recipes()} | set(json.loads(JOBS.read_text()))
    found = [compare(case) for case in bar([case for case in cases if case.group in groups], "Predicting")]
    worst = {counter: max(abs(one.error(counter)) for one in found) for counter in MOST}
    TABLE.write_text(HEAD.format(date=date.today().isoformat(), jobs=len(found), **worst)
                     + "".join(map(line_of, sorted(found, key=lambda one: one.case.group))))
    for one in found:
        if any(abs(one.error(counter)) > most for counter, most in MOST.items()):
            print(f"too far off: {line_of(one)}", file=sys.stderr)
    return int(any(worst[counter] > most for counter, most in MOST.items()))


def line_of(one: Comparison) -> str:
    """A row of the table."""
    cells = [one.case.group, one.case.name]
    for counter in ("requested", "allocated", "reserved"):
        peak = one.peaks[counter]
        cells += [f"{peak.measured_bytes:,}", f"{peak.predicted_bytes - peak.measured_bytes:+,}"]
    return f"| {' | '.join(cells)} |\n"


bar = partial(track, console=Console(stderr=True))


if __name__ == "__main__":
    sys.exit(main())
