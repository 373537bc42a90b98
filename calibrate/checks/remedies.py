"""Run jobs that do not fit, and the remedies that are said to fit, on the emulated GPU.

    pip install -e '.[test]'
    python scripts/check.py remedies                 # 30 random jobs with up to three remedies each: half an hour
    python scripts/check.py remedies --table-only    # the saved results

No GPU is needed. Each job gets a little less memory than it needs. The rank that is predicted to fail runs with that
memory, and must die. A remedy leaves room for memory outside PyTorch's allocator, of which the emulated GPU has none.
So the rank with the highest predicted peak runs with each remedy and that much less memory, and must survive. A remedy
that offloads more than half of this machine's memory is not run, and is counted. Results go to
profiles/evidence/remedies.jsonl, one line per job. Jobs in that file are not run again.
"""

from __future__ import annotations

import os
import random
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, cast

from rich.table import Table

from calibrate.checks.directories import EVIDENCE
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Kept, Row
from calibrate.measure import measure as measuring
from calibrate.records.record import MeasuredOn
from calibrate.regression import compact
from predictor.answer.remedies import remedies
from predictor.common.value_types import thaw
from predictor.engine.engines import Offloading
from predictor.jobs import dispatch, training_job
from predictor.jobs.training_job import Job
from predictor.workload.workload import Workload

NUMBER, SEED = 30, 20261123
SHARES = (0.7, 0.98)
"""Memory of a job's GPU, relative to what the job needs at least."""
MOST_OFFLOADED_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
"""Half of this machine's memory. A job is built on the host, and takes the rest."""
KEYS: Mapping[str, tuple[Any, ...]] = {
    "model": ("llava-1.5-7b",), "sequence_length": (768, 1024, 1536, 2048, 3072),
    "per_device_train_batch_size": (2, 4, 6, 8, 12, 16, 32), "gradient_accumulation_steps": (1, 1, 2, 3),
    "recipe": ("finetune", "finetune", "pretrain"), "gradient_checkpointing": (True, True, False)}
ENGINES: tuple[dict[str, Any], ...] = (
    {"zero_stage": 1, "data_parallel_size": 4}, {"zero_stage": 2, "data_parallel_size": 4},
    {"zero_stage": 2, "data_parallel_size": 8}, {"zero_stage": 3, "data_parallel_size": 4},
    {"zero_stage": 3, "data_parallel_size": 8}, {"engine": "ddp", "data_parallel_size": 2}, {"engine": "torch"})


def jobs(args: Namespace) -> Iterator[Row]:
    """Random jobs, the same in every run, each with the share of its least memory that its GPU has."""
    draw = random.Random(SEED)
    for _ in range(NUMBER):
        keys = {key: draw.choice(values) for key, values in KEYS.items()}
        yield {"job": keys | draw.choice(ENGINES), "share": round(draw.uniform(*SHARES), 3)}


def tried(entry: Mapping[str, Any]) -> Row:
    """The row of a job: its outcome with too little memory, and those of its remedies."""
    whole, _ = compact.workload_of(entry["job"])
    started = dispatch.prepare(whole)
    least = started.minimum_capacity() - started.margin.runtime_high
    job = whole.replace(capacity_bytes=int(least * entry["share"]))
    judged = dispatch.prepare(job).judge()
    failing = job if judged.failure is None else job.replace(rank=judged.failure.run.rank)
    rows = [{"change": "", "must_survive": judged.verdict != "does_not_fit", **_ran(failing)}]
    for remedy in remedies(job):
        if remedy.fits:
            assert job.capacity_bytes is not None  # set above
            other = job.replace(**remedy.keys)
            changed = dispatch.prepare(other)
            surely, _ = changed.margin.limits(job.capacity_bytes)
            offloaded = _offloaded_bytes(changed)
            rows.append({"change": " and ".join(remedy.changes), "must_survive": True,
                         **(_ran(other.replace(capacity_bytes=surely)) if offloaded < MOST_OFFLOADED_BYTES else
                            {"offloaded_bytes": offloaded}),
                         "predicted_reserved_bytes": remedy.peak_reserved_bytes})
    return {"schema_version": 1, "date": date.today().isoformat(), "measured_on": "emulated",
            "job": thaw(entry["job"]), "share": entry["share"], "verdict": judged.verdict, "runs": rows}


def _offloaded_bytes(job: Job) -> int:
    """Bytes that a rank keeps on the host, beside the model that it is built from."""
    if not job.workload.offload:
        return 0
    return sum(cast(Offloading, training_job.engine_of(job.formula, job.setup)).host().held.values())


def _ran(workload: Workload) -> dict[str, Any]:
    record = measuring.measure(workload, device=MeasuredOn.EMULATED)
    survived = record.job.out_of_memory is None
    print(f"{'survived' if survived else 'died'} with {workload.capacity_bytes:,} bytes", file=sys.stderr)
    return {"capacity_bytes": workload.capacity_bytes, "survived": survived, "rank": record.rank,
            "measured_reserved_bytes": record.peak("reserved_bytes").bytes}


measure = Kept(EVIDENCE / "remedies.jsonl", tried, known_by=("job", "share"), forked=True)


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The table of all jobs with their remedies."""
    shown = Table("job", "share of its memory", "verdict", "without", "with")
    wrong = without = 0
    survived = {True: "survived", False: "died", None: "not run"}
    others: list[Row] = []
    for row in rows:
        original, *remedied = row["runs"]
        wrong += sum(run.get("survived") not in (None, run["must_survive"]) for run in row["runs"])
        without += not remedied
        others += remedied
        shown.add_row(", ".join(f"{key} {value}" for key, value in row["job"].items()), f"{row['share']:.0%}",
                      row["verdict"], survived[original["survived"]],
                      "; ".join(f"{run['change']}: {survived[run.get('survived')]}" for run in remedied))
    return Outcome({"runs that came out otherwise": wrong}, shown=(
        shown, f"{len(rows)} jobs, {without} of them without a remedy; {len(others)} remedies, of which "
        f"{sum('survived' not in run for run in others)} offload too much to run on the machine that ran the others"))
