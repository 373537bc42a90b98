#!/usr/bin/env python3
"""Does what a plan proposes survive on the emulated GPU, and does the next larger batch die?

    pip install -e '.[test]'
    python scripts/check_plan.py                 # six plans, four jobs each: a quarter of an hour
    python scripts/check_plan.py --table-only    # the saved results

No GPU is needed. A plan leaves room for what no allocator counts (CUDA context, NCCL, libraries), which the emulated
GPU does not have. So the largest batch of the proposed setting that surely fits, and one sample more, run with that
much less memory; the proposed batch, and the first that would not even fit without that room, with all of it. Each runs
as the rank with the highest predicted peak. Results go to profiles/checks/plan.jsonl, one line a plan with its date and
how long it took; plans that are there are not made again. Exit code 1: a batch came out otherwise than planned.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import date
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.table import Table

from calibrate.measure.measure import measure
from calibrate.records.record import MeasuredOn
from predictor.jobs.dispatch import prepare
from predictor.plan import Wanted, plan
from predictor.plan.plan import workload_of
from predictor.plan.search import Candidate, Configuration
from predictor.workload.workload import Workload

TARGET = Path(__file__).resolve().parents[1] / "profiles" / "checks" / "plan.jsonl"
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    only_table = parser.parse_args().table_only
    rows = [json.loads(line) for line in TARGET.read_text().splitlines()] if TARGET.is_file() else []
    for given, searched in () if only_table else PLANS:
        if (given, searched) not in [(row["given"], row["searched"]) for row in rows]:
            rows.append(check(given, searched))
            with TARGET.open("a") as stream:
                stream.write(json.dumps(rows[-1]) + "\n")
    return show(rows)


def check(given: dict, searched: dict) -> dict:
    """One plan, and what became of four batches of its setting."""
    made = plan(given, Wanted(**searched))
    best = made.proposed
    return {"schema_version": 1, "date": date.today().isoformat(), "measured_on": "emulated", "given": given,
            "searched": searched, "seconds": round(made.seconds, 2), "settings": made.settings,
            "configurations": made.configurations, "counts": asdict(made.counts), "proposed": best.setting.name,
            "gradient_accumulation_steps": best.candidate.accumulation, "jobs": list(jobs(best, made.largest))}


def jobs(best: Configuration, largest: Candidate) -> Iterator[dict]:
    """Each batch as it ran."""
    def at(batch: int) -> Workload:
        return workload_of(replace(best, candidate=replace(best.candidate, batch=batch)))

    job = prepare(at(largest.batch))
    whole, (share, _) = job.workload.capacity, job.margin.limits(job.workload.capacity)
    too_large = next(size for size in count(largest.batch + 1) if prepare(at(size)).judge().verdict == "does_not_fit")
    for name, batch, capacity in (("proposed", best.candidate.batch, whole), ("largest", largest.batch, share),
                                  ("next", largest.batch + 1, share), ("too large", too_large, whole)):
        record = measure(at(batch).replace(capacity_bytes=capacity), device=MeasuredOn.EMULATED)
        died = record.job.out_of_memory
        print(f"{best.setting.name}, {name} batch {batch}: {'died' if died else 'survived'}", file=sys.stderr)
        yield {"batch": name, "per_device_train_batch_size": batch, "rank": record.rank, "capacity_bytes": capacity,
               "survived": died is None, "out_of_memory": died and {"moment": died.moment.value, "step": died.step},
               "measured_reserved_bytes": record.peak("reserved_bytes").bytes,
               "predicted_reserved_bytes": best.prediction.peak_reserved.bytes if name == "proposed" else None}


def show(rows: list[dict]) -> int:
    """The table; 1 if a batch came out otherwise than planned."""
    table = Table("date", "plan", "proposed", *EXPECTED, "seconds", "configurations")
    wrong = 0
    for row in rows:
        wrong += {job["batch"]: job["survived"] for job in row["jobs"]} != EXPECTED
        searched = {"gpus": row["given"].get("data_parallel_size")} | row["searched"]
        asked = f"{searched.pop('gpus')} x {row['given']['gpu']} " + " ".join(
            f"{key} {value}" for key, value in searched.items())
        batches = [f"{job['per_device_train_batch_size']} {'survived' if job['survived'] else 'died'}"
                   for job in row["jobs"]]
        table.add_row(row["date"], asked, row["proposed"], *batches, str(row["seconds"]), f"{row['configurations']:,}")
    Console(width=180).print(table)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
