"""Does what a plan proposes survive on the emulated GPU, and does the next larger batch die?

    pip install -e '.[test]'
    python scripts/check.py plan                 # six plans, four jobs each: a quarter of an hour
    python scripts/check.py plan --table-only    # the saved results

No GPU is needed. A plan leaves room for what no allocator counts (CUDA context, NCCL, libraries), which the emulated
GPU does not have. So the largest batch of the proposed setting that surely fits, and one sample more, run with that
much less memory; the proposed batch, and the first that would not even fit without that room, with all of it. Each runs
as the rank with the highest predicted peak. Results go to profiles/evidence/plan.jsonl, one line a plan with its date
and how long it took; plans that are there are not made again.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import date
from itertools import count
from typing import Any

from rich.table import Table

from calibrate.checks.directories import EVIDENCE
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Kept, Row
from calibrate.measure import measure as measuring
from calibrate.records.record import MeasuredOn
from predictor.jobs.dispatch import prepare
from predictor.plan import Wanted, plan
from predictor.plan.plan import workload_of
from predictor.plan.search import Candidate, Configuration
from predictor.workload.workload import Workload

LLAVA = {"model": "llava-1.5-7b", "sequence_length": 1024}
PLANS = (
    ({**LLAVA, "gpu": "h100-80gb", "data_parallel_size": 8}, {"global_batch_size": 128}),
    ({**LLAVA, "gpu": "a100-40gb", "data_parallel_size": 4}, {"global_batch_size": 64}),
    ({**LLAVA, "gpu": "h100-80gb", "data_parallel_size": 8}, {}),
    ({**LLAVA, "gpu": "a100-40gb", "data_parallel_size": 4}, {}),
    ({**LLAVA, "gpu": "h100-80gb"}, {"gpus": 8, "global_batch_size": 128}),
    ({**LLAVA, "gpu": "a100-40gb"}, {"gpus": 4, "global_batch_size": 64}),
)
"""Keys that are given, and what is searched."""
EXPECTED = {"proposed": True, "largest": True, "next": False, "too large": False}
"""Batch -> whether it survives."""


def jobs(given: Namespace) -> list[Row]:
    return [{"given": keys, "searched": searched} for keys, searched in PLANS]


def planned(job: Mapping[str, Any]) -> Row:
    """One plan, and what became of four batches of its setting."""
    given, searched = job["given"], job["searched"]
    made = plan(given, Wanted(**searched))
    best = made.proposed
    return {"schema_version": 1, "date": date.today().isoformat(), "measured_on": "emulated", "given": given,
            "searched": searched, "seconds": round(made.seconds, 2), "settings": made.settings,
            "configurations": made.configurations, "counts": asdict(made.counts), "proposed": best.setting.name,
            "gradient_accumulation_steps": best.candidate.accumulation, "jobs": list(batches(best, made.largest))}


def batches(best: Configuration, largest: Candidate) -> Iterator[dict[str, Any]]:
    """Each batch as it ran."""
    def at(batch: int) -> Workload:
        return workload_of(replace(best, candidate=replace(best.candidate, batch=batch)))

    job = prepare(at(largest.batch))
    whole, (share, _) = job.workload.capacity, job.margin.limits(job.workload.capacity)
    too_large = next(size for size in count(largest.batch + 1) if prepare(at(size)).judge().verdict == "does_not_fit")
    for name, batch, capacity in (("proposed", best.candidate.batch, whole), ("largest", largest.batch, share),
                                  ("next", largest.batch + 1, share), ("too large", too_large, whole)):
        record = measuring.measure(at(batch).replace(capacity_bytes=capacity), device=MeasuredOn.EMULATED)
        died = record.job.out_of_memory
        print(f"{best.setting.name}, {name} batch {batch}: {'died' if died else 'survived'}", file=sys.stderr)
        yield {"batch": name, "per_device_train_batch_size": batch, "rank": record.rank, "capacity_bytes": capacity,
               "survived": died is None, "out_of_memory": died and {"moment": died.moment.value, "step": died.step},
               "measured_reserved_bytes": record.peak("reserved_bytes").bytes,
               "predicted_reserved_bytes": best.prediction.peak_reserved.bytes if name == "proposed" else None}


measure = Kept(EVIDENCE / "plan.jsonl", planned, known_by=("given", "searched"))


def table(rows: list[Row], given: Namespace) -> Outcome:
    """All plans, and what became of their batches."""
    shown = Table("date", "plan", "proposed", *EXPECTED, "seconds", "configurations")
    wrong = 0
    for row in rows:
        wrong += {job["batch"]: job["survived"] for job in row["jobs"]} != EXPECTED
        searched = {"gpus": row["given"].get("data_parallel_size")} | row["searched"]
        asked = f"{searched.pop('gpus')} x {row['given']['gpu']} " + " ".join(
            f"{key} {value}" for key, value in searched.items())
        ends = [f"{job['per_device_train_batch_size']} {'survived' if job['survived'] else 'died'}"
                   for job in row["jobs"]]
        shown.add_row(row["date"], asked, row["proposed"], *ends, str(row["seconds"]), f"{row['configurations']:,}")
    return Outcome({"plans that came out otherwise": wrong}, shown=(shown,))
