#!/usr/bin/env python3
"""Does what ``predict --mode inference --maximum-load`` finds survive on an emulated GPU, and does one more die?

    pip install -e '.[test]'
    python scripts/check_maximum_load.py                # what is not measured yet, then the table: some minutes
    python scripts/check_maximum_load.py --table-only   # the table from what is saved

No GPU is needed. A prediction leaves room for what no allocator counts (CUDA context, libraries), which the emulated
GPU does not have: each job runs with that much less memory. What was found goes to profiles/checks/maximum_load.jsonl,
one line a job; jobs that are there are not run again. The table is profiles/maximum_load.md. Exit code 1: a job came
out otherwise than predicted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from check_inference import name_of
from check_recipes import measure_missing

from calibrate.measure import warm
from calibrate.measure.measure import measure
from predictor.answer import maximum_load
from predictor.answer.predict import predict
from predictor.jobs import dispatch
from predictor.workload.workload import Workload

HERE = Path(__file__).resolve().parent
JOBS = HERE / "maximum_load.json"
TARGET = HERE.parent / "profiles" / "checks" / "maximum_load.jsonl"
TABLE = HERE.parent / "profiles" / "maximum_load.md"
SHARED = {"mode": "inference", "profile": "none"}
HEAD = """# What is said to fit, tried

The most that `peakcast predict --mode inference --maximum-load` says to fit, then one more, each run on an emulated GPU
with what the prediction leaves to PyTorch. Of a conversation *turns* are those of its file, gone on with turns like the
last one. Made by `python scripts/check_maximum_load.py` on {date} from `checks/maximum_load.jsonl`, which has the
date of each measurement. {right} of {all} came out as predicted.

| job | what is searched | found | the most | one more |
| --- | --- | ---: | --- | --- |
"""


def main() -> int:
    with warm.jobs():
        measure_missing(__doc__, JOBS, TARGET, lambda job: {
            "measured_on": "emulated", "date": date.today().isoformat(), "searches": list(searches(job))})
    return write_table([json.loads(line) for line in TARGET.read_text().splitlines()])


def searches(job: dict) -> Iterator[dict]:
    """Each search of a job, and what became of the most and of one more."""
    asked = Workload(**(SHARED | job))
    prediction = predict(asked, maximum_load=True)
    found, (share, _) = prediction.inference, dispatch.prepare(asked).margin.limits(asked.capacity)
    for what, most in (("prompt", found.longest_prompt_tokens), ("turns", found.most_turns),
                       ("at once", found.concurrent_sequences)):
        if most is None or any(what in line.lower() for line in found.search_limits):
            continue
        outcomes = []
        for size in (most, most + 1):
            changed = {"prompt": {"sequence_length": size}, "at once": {"per_device_eval_batch_size": size},
                       "turns": {}}[what]
            workload = maximum_load.going_on(asked, size) if what == "turns" else asked.replace(**changed)
            died = measure(workload.replace(capacity_bytes=share)).job.out_of_memory
            outcomes.append(died and {"moment": died.moment.value, "call": died.step})
        yield {"what": what, "most": most, "outcomes": outcomes}


def write_table(rows: list[dict]) -> int:
    """The table of all jobs; 1 if one came out otherwise than predicted."""
    lines, right = [], []
    for row in rows:
        for one in row["searches"]:
            right.append([died is None for died in one["outcomes"]] == [True, False])
            shown = ["survived" if died is None else f"died in {died['moment']} of call {died['call']}"
                     for died in one["outcomes"]]
            lines.append(f"| {name_of(row['job'])} | {one['what']} | {one['most']:,} | {' | '.join(shown)} |\n")
    TABLE.write_text(HEAD.format(date=date.today().isoformat(), right=sum(right), all=len(right)) + "".join(lines))
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
