#!/usr/bin/env python3
"""Measure a fixed set of jobs on the emulated H100 and put the predictions beside them.

    pip install -e '.[test]'
    python scripts/compare_emulated.py                 # all jobs, about half an hour on two cores
    python scripts/compare_emulated.py --again 20      # 20 saved jobs once more: are the peaks the same to the byte?
    python scripts/compare_emulated.py --table-only    # the table of the saved results, a minute

No GPU is needed. What was measured goes to profiles/h100-80gb/emulated.jsonl, one line a job; jobs that are there
are not run again, so an interrupted run goes on where it was. Delete the file to begin anew. Predictions are made
anew each time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from calibrate.measure.measure import measure
from calibrate.regression import compact, files, report
from calibrate.report import regression as text

TARGET = Path(__file__).resolve().parents[1] / "profiles" / "h100-80gb" / "emulated.jsonl"
COUNTERS = ("requested", "allocated", "reserved")
OVERLAP = {"bf16": {"enabled": True},
           "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500_000_000}}
GROUPED = json.loads((compact.MODELS / "grouped.json").read_text())
"""A LLaVA with Qwen2-1.5B (grouped heads) and SigLIP inside; ``"model": "grouped"`` in a job."""


def jobs() -> Iterator[tuple[str, dict]]:
    """Group and workload of each job: the seed paper's grid (arXiv 2512.07853), then one change at a time.

    ``events`` is no key of the workload: when events complete on the emulated GPU. What overlaps runs at both ends.
    """
    for batch, sequence in ((16, 1024), (8, 2048)):
        for recipe in ("finetune", "pretrain"):
            for degree in (1, 2, 4, 8):
                for rank in sorted({0, degree - 1}):
                    for engine in ({"zero_stage": 2}, {"deepspeed": OVERLAP},
                                   {"deepspeed": OVERLAP, "events": "synchronization"}):
                        yield "paper", {"model": "llava-1.5-7b", "recipe": recipe, "sequence_length": sequence,
                                        "per_device_train_batch_size": batch, "data_parallel_size": degree,
                                        "rank": rank, **engine}
    base = {"model": "llava-1.5-7b", "sequence_length": 1024, "per_device_train_batch_size": 4, "zero_stage": 2,
            "data_parallel_size": 8, "rank": 7}
    for change in (
        {"model": "llava-1.5-13b"}, {"model": "llava-1.5-13b", "gradient_checkpointing": False},
        {"gradient_checkpointing": False}, {"recipe": "full"}, {"recipe": "full", "gradient_checkpointing": False},
        {"recipe": "pretrain", "gradient_checkpointing": False},
        {"gradient_checkpointing_kwargs": {"use_reentrant": True}}, {"padding": "right"},
        {"padding": "right", "gradient_checkpointing": False},
        {"optim": "adamw_torch"}, {"optim": "adamw_torch_forloop"},
        {"gradient_accumulation_steps": 3}, {"sdpa_backend": "flash", "gradient_checkpointing": False},
        {"sdpa_backend": "efficient", "gradient_checkpointing": False},
        {"attn_implementation": "eager", "gradient_checkpointing": False},
        {"sequence_length": 1333, "gradient_checkpointing": False},
        {"per_device_train_batch_size": 1, "gradient_checkpointing": False},
        {"per_device_train_batch_size": 1, "images_per_sample": 3, "sequence_length": 2049,
         "gradient_checkpointing": False},
        {"images_per_sample": 2, "sequence_length": 1501, "gradient_checkpointing": False},
        {"model": "grouped"}, {"model": "grouped", "gradient_checkpointing": False},
        {"model": "grouped", "sdpa_backend": "flash", "gradient_checkpointing": False},
        {"model": "grouped", "sdpa_backend": "flash", "padding": "right", "gradient_checkpointing": False},
    ):
        yield "variants", base | change
    small = base | {"model": "grouped"}
    for change in (
        {}, {"contiguous_gradients": False}, {"use_multi_rank_bucket_allreduce": False}, {"reduce_scatter": False},
        {"round_robin_gradients": True}, {"reduce_bucket_size": 5_000_000},
    ):
        overlap = {**OVERLAP, "zero_optimization": OVERLAP["zero_optimization"] | change}
        for events in ("immediate", "synchronization"):
            yield "overlap", {key: value for key, value in small.items() if key != "zero_stage"} | {
                "deepspeed": overlap, "gradient_accumulation_steps": 2, "events": events}
    for conf in ("expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"):
        yield "settings", small | {"allocator_conf": conf}
    alone = {"model": "grouped", "sequence_length": 1024, "per_device_train_batch_size": 4}
    for change in ({}, {"optim": "adamw_torch"}, {"optim": "adamw_torch_forloop"}, {"gradient_accumulation_steps": 2}):
        yield "plain PyTorch", alone | change


def recipes() -> Iterator[tuple[str, dict]]:
    """Adapters, engines and optimizers: each with two models at least, of one GPU and of several."""
    small = {"model": "grouped", "sequence_length": 1100, "per_device_train_batch_size": 3}
    large = {"model": "shallow", "sequence_length": 1801, "per_device_train_batch_size": 2}
    two, eight = {"data_parallel_size": 2, "rank": 0}, {"data_parallel_size": 8, "rank": 7}
    dora = {"recipe": "lora", "lora": {"r": 64, "use_dora": True, "lora_dropout": 0.05}}
    saved = {"recipe": "lora", "lora": {"r": 8, "modules_to_save": ["lm_head"]}, "gradient_checkpointing": False}
    several = ({"zero_stage": 1, **two}, {"zero_stage": 2, **eight}, {"zero_stage": 3, **eight})
    for base, lora in ((small, dora), (large, saved)):
        for engine in ({}, {"engine": "ddp", **two}, *several):
            yield "adapters", base | lora | engine
    views = {"engine": "ddp", "ddp": {"gradient_as_bucket_view": True}, "gradient_accumulation_steps": 2, **eight}
    for stage in (1, 3):
        config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage, "overlap_comm": True}}
        for engine in ({"zero_stage": stage, **two}, {"deepspeed": config, "gradient_accumulation_steps": 2, **eight}):
            for base in (small, large | {"gradient_checkpointing": False}):
                yield f"ZeRO-{stage}", base | engine
    for base in (small, large | {"gradient_checkpointing": False}):
        for engine in ({"engine": "ddp", **two}, views):
            yield "DDP", base | engine
    for optim in ("sgd", "rmsprop", "adafactor", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "lion_32bit",
                  "lion_8bit"):
        momentum = {"optim_args": "momentum=0.9"} if optim == "sgd" else {}
        for base in (small, large | {"zero_stage": 2, **eight}):
            yield "optimizers", base | {"optim": optim, **momentum}
    for base in (small, large):
        yield "optimizers", base | {"optim": "adagrad", "max_grad_norm": 0.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", type=int, default=0, metavar="N", help="measure N saved jobs again and compare")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in TARGET.read_text().splitlines()] if TARGET.is_file() else []
    done = {(json.dumps(row["job"], sort_keys=True)) for row in rows}
    missing = [(group, job) for group, job in chain(jobs(), recipes()) if json.dumps(job, sort_keys=True) not in done]
    for group, job in track([] if arguments.table_only else missing, description="Measuring",
                            console=Console(stderr=True)):
        row = compact.row(job, run(job), group=group)
        rows.append(row)
        with TARGET.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
    if arguments.again:
        return repeat(rows[:: max(1, len(rows) // arguments.again)][: arguments.again])
    return show()


def repeat(rows: list[dict]) -> int:
    """Measure saved jobs again; 1 if any peak differs by a byte."""
    wrong = 0
    for row in track(rows, description="Measuring again", console=Console(stderr=True)):
        again = run(row["job"])
        if [row[f"{name}_bytes"] for name in COUNTERS] != [again[f"{name}_bytes"] for name in COUNTERS]:
            wrong += 1
            print("differs:", json.dumps(row["job"]), [(row[f"{n}_bytes"], again[f"{n}_bytes"]) for n in COUNTERS])
    print(f"{len(rows)} jobs measured again, {wrong} differ")
    return int(wrong > 0)


def run(job: dict) -> dict:
    """Measured peaks of one job; bytes. Start-up counts."""
    workload, events = compact.workload_of(job)
    record = measure(workload, events=events)
    return {
        "measured_on": record.job.measured_on.value, "date": record.job.finished_at[:10], "rank": record.rank,
        "software": {name: record.job.software[name] for name in ("torch", "transformers", "deepspeed")},
        "seconds": round(record.job.seconds, 1), "moment": record.peak("requested_bytes").moment.value,
    } | {f"{name}_bytes": record.peak(f"{name}_bytes").bytes for name in COUNTERS}


def show() -> int:
    """The report of all rows, each with its errors; 1 if a moment differs."""
    found = report.make(*files.read([TARGET]), progress=partial(track, console=Console(stderr=True)))
    table = Table("group", "job", "moment", "measured GiB", *(f"{name} error %" for name in COUNTERS))
    for one in found.comparisons:
        moment = one.moment if one.moment_hit else f"{one.case.moment} (not {one.moment})"
        table.add_row(one.case.group, one.case.name, moment, f"{one.peaks['requested'].measured_bytes / 2**30:.3f}",
                      *(f"{100 * one.error(name):+.5f}" for name in COUNTERS))
    console = Console(width=220)
    console.print(table)
    text.report(console, found)
    return int(found.overall.moment_hits < found.overall.moments)


if __name__ == "__main__":
    sys.exit(main())
