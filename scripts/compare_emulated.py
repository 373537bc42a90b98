#!/usr/bin/env python3
"""Measure a fixed set of jobs on the emulated H100 and put the predictions beside them.

    pip install -e '.[test]'
    python scripts/compare_emulated.py                 # all jobs, about 20 minutes on two cores
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
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from calibrate.measure import measure
from predictor import survival
from predictor.pipeline import prepare
from predictor.workload import Workload

TARGET = Path(__file__).resolve().parents[1] / "profiles" / "h100-80gb" / "emulated.jsonl"
COUNTERS = ("requested", "allocated", "reserved")
PLENTY = 400 << 30
"""Capacity of the emulated GPU, so that a peak above 80 GB can be measured too."""
OVERLAP = {"bf16": {"enabled": True},
           "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500_000_000}}
GROUPED = {
    "model_type": "llava", "image_token_index": 151646, "vision_feature_layer": -2,
    "vision_feature_select_strategy": "full", "tie_word_embeddings": False,
    "text_config": {"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936},
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
                      "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 384, "patch_size": 14},
}
"""A LLaVA with Qwen2-1.5B (grouped heads) and SigLIP inside."""


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", type=int, default=0, metavar="N", help="measure N saved jobs again and compare")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in TARGET.read_text().splitlines()] if TARGET.is_file() else []
    done = {(json.dumps(row["job"], sort_keys=True)) for row in rows}
    missing = [(group, job) for group, job in jobs() if json.dumps(job, sort_keys=True) not in done]
    with tempfile.TemporaryDirectory() as directory:
        grouped = Path(directory) / "config.json"
        grouped.write_text(json.dumps(GROUPED))
        for group, job in track([] if arguments.table_only else missing, description="Measuring",
                                console=Console(stderr=True)):
            row = {"group": group, "job": job} | run(job, str(grouped))
            rows.append(row)
            with TARGET.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
        if arguments.again:
            return repeat(rows[:: max(1, len(rows) // arguments.again)][: arguments.again], str(grouped))
        return show(rows, str(grouped))


def repeat(rows: list[dict], grouped: str) -> int:
    """Measure saved jobs again; 1 if any peak differs by a byte."""
    wrong = 0
    for row in track(rows, description="Measuring again", console=Console(stderr=True)):
        again = run(row["job"], grouped)
        if [row[f"{name}_bytes"] for name in COUNTERS] != [again[f"{name}_bytes"] for name in COUNTERS]:
            wrong += 1
            print("differs:", json.dumps(row["job"]), [(row[f"{n}_bytes"], again[f"{n}_bytes"]) for n in COUNTERS])
    print(f"{len(rows)} jobs measured again, {wrong} differ")
    return int(wrong > 0)


def workload_of(job: dict, grouped: str) -> tuple[Workload, str]:
    """A job's workload and when events complete."""
    keys = job | {"model": grouped if job["model"] == "grouped" else job["model"], "gpu": "h100-80gb",
                  "capacity_bytes": PLENTY, "profile": "none"}
    events = keys.pop("events", "immediate")
    return Workload(**keys), events


def run(job: dict, grouped: str) -> dict:
    """Measured peaks of one job; bytes. Start-up counts."""
    workload, events = workload_of(job, grouped)
    record = measure(workload, events=events)
    return {
        "measured_on": record.job.measured_on.value, "date": record.job.finished_at[:10], "rank": record.rank,
        "software": {name: record.job.software[name] for name in ("torch", "transformers", "deepspeed")},
        "seconds": round(record.job.seconds, 1), "moment": record.peak("requested_bytes").moment.value,
    } | {f"{name}_bytes": record.peak(f"{name}_bytes").bytes for name in COUNTERS}


def foresee(job: dict, grouped: str) -> dict:
    """Predicted peaks of one job, and the moment of the requested one."""
    workload, events = workload_of(job, grouped)
    prepared = prepare(workload)
    composed = prepared.run(PLENTY)
    simulation = survival.play(composed, prepared.setup.allocator, completion=events, total_bytes=PLENTY)
    return {"requested_bytes": composed.peak, "allocated_bytes": simulation.peak_allocated_bytes,
            "reserved_bytes": simulation.peak_reserved_bytes,
            "moment": composed.events[int(composed.live.argmax())].tag.moment.value}


def show(rows: list[dict], grouped: str) -> int:
    """The table, and the errors by group; 1 if a moment differs."""
    table = Table("group", "job", "moment", "measured GiB", *(f"{name} error" for name in COUNTERS))
    groups: dict[str, list[list[float]]] = {}
    wrong = 0
    for row in track(rows, description="Predicting", console=Console(stderr=True)):
        foreseen = foresee(row["job"], grouped)
        errors = [(foreseen[f"{name}_bytes"] / row[f"{name}_bytes"] - 1) * 100 for name in COUNTERS]
        groups.setdefault(row["group"], []).append(errors)
        wrong += row["moment"] != foreseen["moment"]
        job = ", ".join(f"{key} {value}" for key, value in row["job"].items() if key not in ("deepspeed", "zero_stage"))
        job += ", overlap" if "deepspeed" in row["job"] else ""
        moment = row["moment"] if row["moment"] == foreseen["moment"] else f"{row['moment']} (not {foreseen['moment']})"
        table.add_row(row["group"], job, moment, f"{row['requested_bytes'] / 2**30:.3f}",
                      *(f"{error:+.5f} %" for error in errors))
    console = Console(width=220)
    console.print(table)
    for group, errors in groups.items():
        for name, values in zip(COUNTERS, zip(*errors)):
            sizes = [abs(value) for value in values]
            console.print(f"{group}, {name}: {len(sizes)} jobs, mean error {sum(sizes) / len(sizes):.6f} %, "
                          f"worst {max(sizes):.6f} %, {sum(size == 0 for size in sizes)} exact")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
