#!/usr/bin/env python3
"""Sweep the emulated GPU's capacity around the predicted limit: does the job survive just above, die just below?

    pip install -e '.[test]'
    python scripts/compare_verdicts.py                 # 24 jobs, about 15 minutes on two cores
    python scripts/compare_verdicts.py --table-only    # the saved results

No GPU is needed. Results go to profiles/h100-80gb/verdicts.jsonl, one line a job; jobs that are there are not run
again. Each job runs where it is predicted to just survive (the least capacity from which on it survives) and one
page of 2 MiB below; if one of them turns out otherwise, further away until the limit is found.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compare_emulated import GROUPED, OVERLAP
from rich.console import Console
from rich.progress import track
from rich.table import Table

from calibrate.measure.measure import measure
from calibrate.records.record import MeasuredOn
from calibrate.regression import compact
from predictor.jobs.dispatch import prepare
from predictor.jobs.survival import PAGE_BYTES
from predictor.profile.calibrated import ASSUMED_RUNTIME_BYTES
from predictor.workload.workload import Workload

TARGET = Path(__file__).resolve().parents[1] / "profiles" / "h100-80gb" / "verdicts.jsonl"
FURTHER = (0, 1, 4, 16, 64, 256)
"""Pages from the predicted limit at which it is looked for."""
SHALLOW = {
    "model_type": "llava", "image_token_index": 32000, "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default", "tie_word_embeddings": False,
    "text_config": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 4,
                    "num_attention_heads": 32, "vocab_size": 32064},
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
                      "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
                      "projection_dim": 768, "vocab_size": 32000},
}
"""LLaVA-1.5-7B with 4 of its 32 layers: 1.4 billion parameters."""
MODELS = {"grouped": GROUPED, "shallow": SHALLOW}


def jobs() -> Iterator[dict]:
    """One change at a time, on two models below 3 billion parameters."""
    for model in MODELS:
        base = {"model": model, "sequence_length": 1024, "per_device_train_batch_size": 4, "zero_stage": 2,
                "data_parallel_size": 8, "rank": 7}
        for change in (
            {}, {"data_parallel_size": 1, "rank": 0}, {"data_parallel_size": 2, "rank": 0},
            {"gradient_checkpointing": False}, {"recipe": "pretrain"}, {"recipe": "full", "rank": 0},
            {"optim": "adamw_torch", "data_parallel_size": 2, "rank": 1}, {"gradient_accumulation_steps": 3},
            {"padding": "right", "sequence_length": 1333, "gradient_checkpointing": False},
            {"per_device_train_batch_size": 16},
        ):
            yield base | change
        for change in ({}, {"gradient_checkpointing": False}):
            yield {key: value for key, value in base.items() if key != "zero_stage"} | {"deepspeed": OVERLAP} | change


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in TARGET.read_text().splitlines()] if TARGET.is_file() else []
    done = [row["job"] for row in rows]
    missing = [job for job in jobs() if job not in done]
    with tempfile.TemporaryDirectory() as directory:
        for name, config in MODELS.items():
            (Path(directory) / f"{name}.json").write_text(json.dumps(config))
        for job in track([] if arguments.table_only else missing, description="Sweeping", console=Console(stderr=True)):
            workload = Workload(**job | {"model": f"{directory}/{job['model']}.json"})
            rows.append(compact.row(job, sweep(workload)))
            with TARGET.open("a") as stream:
                stream.write(json.dumps(rows[-1]) + "\n")
    return show(rows)


def sweep(workload: Workload, device: MeasuredOn = MeasuredOn.EMULATED) -> dict:
    """The predicted limit of PyTorch's share, and the nearest capacities at which the job survived and died."""
    workload = workload.replace(gpu=workload.gpu or "h100-80gb", profile="none")
    predicted = prepare(workload).minimum_capacity() - ASSUMED_RUNTIME_BYTES
    # blocks shared by two streams: the limit holds for whichever completion of events needs more
    both = workload.deepspeed and device is MeasuredOn.EMULATED
    modes = ("immediate", "synchronization") if both else ("immediate",)

    def survives(pages: int) -> bool:
        there = workload.replace(capacity_bytes=predicted + pages * PAGE_BYTES)
        return all(measure(there, device=device, events=events).job.out_of_memory is None for events in modes)

    above = next((pages for pages in FURTHER if survives(pages)), None)
    below = next((-pages for pages in FURTHER[1:] if not survives(-pages)), None)
    return {"measured_on": device.value, "predicted_limit_bytes": predicted,
            "survived_bytes": None if above is None else predicted + above * PAGE_BYTES,
            "died_bytes": None if below is None else predicted + below * PAGE_BYTES}


def show(rows: list[dict]) -> int:
    """The table; 1 if a limit was not found."""
    table = Table("job", "predicted limit (MiB)", "survived at", "died at")
    for row in rows:
        limit = row["predicted_limit_bytes"]
        cells = ["none looked at" if row[key] is None else f"{(row[key] - limit) >> 20:+d} MiB"
                 for key in ("survived_bytes", "died_bytes")]
        job = ", ".join(f"{key} {value}" for key, value in row["job"].items() if key not in ("deepspeed", "zero_stage"))
        table.add_row(job + (", overlap" if "deepspeed" in row["job"] else ""), f"{limit >> 20:,}", *cells)
    console = Console(width=200)
    console.print(table)
    exact = sum(row["survived_bytes"] == row["predicted_limit_bytes"]
                and row["died_bytes"] == row["predicted_limit_bytes"] - PAGE_BYTES for row in rows)
    console.print(f"{len(rows)} jobs: {exact} survive at the predicted limit and die one page (2 MiB) below")
    return int(any(row["survived_bytes"] is None or row["died_bytes"] is None for row in rows))


if __name__ == "__main__":
    sys.exit(main())
