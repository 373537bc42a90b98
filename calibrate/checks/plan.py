"""Run the batch that a plan proposes, and larger ones, on the emulated GPU.

    pip install -e '.[test]'
    python scripts/check.py plan                 # six plans, four jobs each: a quarter of an hour
    python scripts/check.py plan --table-only    # the saved results

No GPU is needed. A plan leaves room for memory outside PyTorch's allocator (CUDA context, NCCL, libraries), which lies
in a range. The emulated GPU has none of that. So two jobs run with the most of it taken away: the largest batch of the
proposed setting that surely fits, which must survive, and one sample more, which must die. The proposed batch runs
with all memory, and must survive. The first batch that does not fit runs with the least of it taken away, and must
die. Each runs as the rank with the highest predicted peak. Results go to profiles/evidence/plan.jsonl, one line per
plan, with its date and the seconds that planning took. Plans in that file are not made again.
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
from predictor.plan.search import Configuration
from predictor.workload.workload import Workload

LLAVA: dict[str, Any] = {"model": "llava-1.5-7b", "sequence_length": 1024}
PLANS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({**LLAVA, "gpu": "h100-80gb", "data_parallel_size": 8}, {"global_batch_size": 128}),
    ({**LLAVA, "gpu": "a100-40gb", "data_parallel_size": 4}, {"global_batch_size": 64}),
    ({**LLAVA, "gpu": "h100-80gb", "data_parallel_size": 8}, {}),
    ({**LLAVA, "gpu": "a100-40gb", "data_parallel_size": 4}, {}),
    ({**LLAVA, "gpu": "h100-80gb"}, {"gpus": 8, "global_batch_size": 128}),
    ({**LLAVA, "gpu": "a100-40gb"}, {"gpus": 4, "global_batch_size": 64}),
)
"""Pairs of the workload's fixed keys and the options of the search."""
EXPECTED = {"proposed": True, "largest": True, "next": False, "too large": False}
"""Name of a batch -> whether it must survive."""


def jobs(args: Namespace) -> list[Row]:
    return [{"given": keys, "searched": searched} for keys, searched in PLANS]


def planned(job: Mapping[str, Any]) -> Row:
    """The row of a plan: its proposal, and the outcomes of four batches of that setting."""
    keys, searched = job["given"], job["searched"]
    planning = plan(keys, Wanted(**searched))
    best = planning.proposed
    assert best is not None and planning.largest is not None  # a configuration fits in every plan of the list
    return {"schema_version": 1, "date": date.today().isoformat(), "measured_on": "emulated", "given": keys,
            "searched": searched, "seconds": round(planning.seconds, 2), "settings": planning.settings,
            "configurations": planning.configurations, "counts": asdict(planning.counts), "proposed": best.setting.name,
            "gradient_accumulation_steps": best.candidate.accumulation, "jobs":
            list(batches(best, planning.largest.micro_batch))}


def batches(best: Configuration, largest: int) -> Iterator[dict[str, Any]]:
    """Runs the four batches. Yields the outcome of each."""
    def at(batch: int) -> Workload:
        return workload_of(replace(best, candidate=replace(best.candidate, batch=batch)))

    job = prepare(at(largest))
    whole = job.workload.capacity
    assert whole is not None  # every plan of the list is for a known GPU
    share, at_best = job.margin.limits(whole)
    too_large = next(size for size in count(largest + 1) if prepare(at(size)).judge().verdict == "does_not_fit")
    for name, batch, capacity in (("proposed", best.candidate.batch, whole), ("largest", largest, share),
                                  ("next", largest + 1, share), ("too large", too_large, at_best or whole)):
        record = measuring.measure(at(batch).replace(capacity_bytes=capacity), device=MeasuredOn.EMULATED)
        died = record.job.out_of_memory
        print(f"{best.setting.name}, {name} batch {batch}: {'died' if died else 'survived'}", file=sys.stderr)
        yield {"batch": name, "per_device_train_batch_size": batch, "rank": record.rank, "capacity_bytes": capacity,
               "survived": died is None, "out_of_memory": died and {"moment": died.moment.value, "step": died.step},
               "measured_reserved_bytes": record.peak("reserved_bytes").bytes,
               "predicted_reserved_bytes": best.prediction.peak_reserved_bytes if name == "proposed" else None}


measure = Kept(EVIDENCE / "plan.jsonl", planned, known_by=("given", "searched"))


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The table of all plans and the outcomes of their batches."""
    plans = Table("date", "plan", "proposed", *EXPECTED, "seconds", "configurations")
    wrong = 0
    for row in rows:
        wrong += {job["batch"]: job["survived"] for job in row["jobs"]} != EXPECTED
        searched = {"gpus": row["given"].get("data_parallel_size")} | row["searched"]
        label = f"{searched.pop('gpus')} x {row['given']['gpu']} " + " ".join(
            f"{key} {value}" for key, value in searched.items())
        outcomes = [f"{job['per_device_train_batch_size']} {'survived' if job['survived'] else 'died'}"
                   for job in row["jobs"]]
        plans.add_row(row["date"], label, row["proposed"], *outcomes, str(row["seconds"]), f"{row['configurations']:,}")
    return Outcome({"plans that came out otherwise": wrong}, shown=(plans,))
