"""Run jobs on the emulated GPU with capacities around the predicted limit: survive at it, die just below it.

    pip install -e '.[test]'
    python scripts/check.py verdicts                 # 24 jobs, about 15 minutes on two cores
    python scripts/check.py verdicts --table-only    # the saved results

No GPU is needed. Results go to profiles/h100-80gb/verdicts.jsonl, one line per job. Jobs in that file are not run
again. Each job runs at the predicted limit (the smallest capacity at which it is predicted to survive) and one page of
2 MiB below. If an outcome differs from the prediction, the job runs further away until the limit is found.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from calibrate.checks.directories import H100
from calibrate.checks.emulated_jobs import OVERLAP
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Kept, Row, compact_row
from calibrate.checks.survival_limit import sweep
from calibrate.regression import compact
from predictor.jobs.survival import PAGE_BYTES

MODELS = ("grouped", "shallow")
"""Models of ``calibrate/regression/models``, below 3 billion parameters."""
CHANGES: tuple[dict[str, Any], ...] = (
    {}, {"data_parallel_size": 1, "rank": 0}, {"data_parallel_size": 2, "rank": 0},
    {"gradient_checkpointing": False}, {"recipe": "pretrain"}, {"recipe": "full", "rank": 0},
    {"optim": "adamw_torch", "data_parallel_size": 2, "rank": 1}, {"gradient_accumulation_steps": 3},
    {"padding": "right", "sequence_length": 1333, "gradient_checkpointing": False},
    {"per_device_train_batch_size": 16},
)


def jobs(args: Namespace) -> Iterator[Row]:
    """A base job with one change at a time, for each model."""
    for model in MODELS:
        base: dict[str, Any] = {"model": model, "sequence_length": 1024, "per_device_train_batch_size": 4,
                                "zero_stage": 2, "data_parallel_size": 8, "rank": 7}
        for change in CHANGES:
            yield {"job": base | change}
        changes: tuple[dict[str, Any], ...] = ({}, {"gradient_checkpointing": False})
        for change in changes:
            overlap = {key: value for key, value in base.items() if key != "zero_stage"} | {"deepspeed": OVERLAP}
            yield {"job": overlap | change}


def swept(job: Mapping[str, Any]) -> dict[str, Any]:
    """Searches for the limit of one job. Drops the large capacity that ``compact.workload_of`` sets."""
    workload, _ = compact.workload_of(job)
    return sweep(workload.replace(capacity_bytes=None))


measure = Kept(H100 / "verdicts.jsonl", compact_row(swept))


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The table of measured and predicted limits."""
    limits = Table("job", "predicted limit (MiB)", "survived at", "died at")
    for row in rows:
        limit = row["predicted_limit_bytes"]
        cells = ["none looked at" if row[key] is None else f"{(row[key] - limit) >> 20:+d} MiB"
                 for key in ("survived_bytes", "died_bytes")]
        job = ", ".join(f"{key} {value}" for key, value in row["job"].items() if key not in ("deepspeed", "zero_stage"))
        limits.add_row(job + (", overlap" if "deepspeed" in row["job"] else ""), f"{limit >> 20:,}", *cells)
    exact = sum(row["survived_bytes"] == row["predicted_limit_bytes"]
                and row["died_bytes"] == row["predicted_limit_bytes"] - PAGE_BYTES for row in rows)
    unfound = sum(row["survived_bytes"] is None or row["died_bytes"] is None for row in rows)
    return Outcome({"limits that were not found": unfound}, shown=(
        limits, f"{len(rows)} jobs: {exact} survive at the predicted limit and die one page (2 MiB) below"))
