"""Does what ``predict --mode inference --maximum-load`` finds survive on an emulated GPU, and does one more die?

    pip install -e '.[test]'
    python scripts/check.py maximum_load                # what is not measured yet, then the table: some minutes
    python scripts/check.py maximum_load --table-only   # the table from what is saved

No GPU is needed. A prediction leaves room for what no allocator counts (CUDA context, libraries), which the emulated
GPU does not have: each job runs with that much less memory. What was found goes to
profiles/evidence/maximum_load.jsonl, one line a job; jobs that are there are not run again. The table is
profiles/pages/maximum_load.md.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from calibrate.checks import results_file
from calibrate.checks.directories import EVIDENCE, PAGES
from calibrate.checks.measured_peaks import name_of
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Row
from calibrate.measure import measure as measuring
from predictor.answer import maximum_load
from predictor.answer.predict import predict
from predictor.jobs import dispatch
from predictor.workload.workload import Workload

PAGE = PAGES / "maximum_load.md"
SHARED = {"mode": "inference", "profile": "none"}
HEAD = """# What is said to fit, tried

The most that `peakcast predict --mode inference --maximum-load` says to fit, then one more, each run on an emulated GPU
with what the prediction leaves to PyTorch. Of a conversation *turns* are those of its file, gone on with turns like the
last one. Made by `python scripts/check.py maximum_load` on {date} from `evidence/maximum_load.jsonl`, which has the
date of each measurement. {right} of {all} came out as predicted.

| job | what is searched | found | the most | one more |
| --- | --- | ---: | --- | --- |
"""


def jobs(given: Namespace) -> list[Row]:
    return results_file.listed(__file__)


def searched(job: Mapping[str, Any]) -> dict[str, Any]:
    return {"measured_on": "emulated", "date": date.today().isoformat(), "searches": list(searches(job))}


def searches(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
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
            died = measuring.measure(workload.replace(capacity_bytes=share)).job.out_of_memory
            outcomes.append(died and {"moment": died.moment.value, "call": died.step})
        yield {"what": what, "most": most, "outcomes": outcomes}


measure = results_file.Kept(EVIDENCE / "maximum_load.jsonl", results_file.compact_row(searched), forked=True)


def table(rows: list[Row], given: Namespace) -> Outcome:
    """What became of all searches."""
    lines, right = [], []
    for row in rows:
        for one in row["searches"]:
            right.append([died is None for died in one["outcomes"]] == [True, False])
            shown = ["survived" if died is None else f"died in {died['moment']} of call {died['call']}"
                     for died in one["outcomes"]]
            lines.append(f"| {name_of(row['job'])} | {one['what']} | {one['most']:,} | {' | '.join(shown)} |\n")
    head = HEAD.format(date=date.today().isoformat(), right=sum(right), all=len(right))
    return Outcome({"jobs that came out otherwise": right.count(False)}, {PAGE: head + "".join(lines)})
