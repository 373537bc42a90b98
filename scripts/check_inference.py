#!/usr/bin/env python3
"""Measure jobs of inference on emulated GPUs, beside predictions, call by call.

    pip install -e '.[test]'
    python scripts/check_inference.py                # what is not measured yet, then the table: some minutes
    python scripts/check_inference.py --table-only   # the table from what is saved

No GPU is needed. The jobs are those of scripts/inference.json, by what they stand for; what was measured goes to
profiles/checks/inference.jsonl, one line a job; jobs that are there are not run again. The table is
profiles/inference.md. Exit code 1: a prediction is off by more than 1 % of any peak.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

from check_recipes import bar, measure_missing

from calibrate.measure import warm
from calibrate.measure.measure import measure
from calibrate.regression import compact
from predictor.answer import replies
from predictor.common.plain import to_plain
from predictor.jobs import dispatch, survival
from predictor.workload.workload import Workload

HERE = Path(__file__).resolve().parent
JOBS = HERE / "inference.json"
TARGET = HERE.parent / "profiles" / "checks" / "inference.jsonl"
TABLE = HERE.parent / "profiles" / "inference.md"
COUNTERS = ("requested_bytes", "allocated_bytes", "reserved_bytes")
SHARED = {"mode": "inference", "gpu": "h100-80gb", "capacity_bytes": compact.PLENTY_BYTES, "profile": "none"}
MOST = 0.01
"""Error of any peak, as a fraction."""
HEAD = """# Inference, measured and predicted

Peaks in bytes of calls of transformers' `generate` on emulated GPUs (400 GiB of memory, so that each is measured to its
end; an H100 unless the job says otherwise), and predicted less measured. Made by `python scripts/check_inference.py` on
{date} from `checks/inference.jsonl`, which has the date and software of each measurement. {jobs} jobs: requested off by
at most {requested:.4%}, allocated by {allocated:.4%}, reserved by {reserved:.4%}; of prefill and decoding of each call,
requested by {moments:.4%}.

| line | job | requested | off by | allocated | off by | reserved | off by |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
TURNS = """
## {line}: {job}

Requested bytes, turn by turn.

| turn | role | tokens in | images | new tokens | in cache | cache | prefill | off by | decode | off by |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def main() -> int:
    with warm.jobs():
        measure_missing(__doc__, JOBS, TARGET, measured)
    return write_table([json.loads(line) for line in TARGET.read_text().splitlines()])


def measured(job: dict) -> dict:
    """Peaks of one job, and of each moment of each call; bytes. Start-up is call 0."""
    record = measure(Workload(**(SHARED | job)))
    return {
        "measured_on": record.job.measured_on.value, "date": record.job.finished_at[:10], "rank": record.rank,
        "software": {name: record.job.software[name] for name in ("torch", "transformers")},
        "seconds": round(record.job.seconds, 1), "moment": record.peak("requested_bytes").moment.value,
        "moments": [to_plain(row) for row in record.job.moments],
    } | {name: record.peak(name).bytes for name in COUNTERS}


def write_table(rows: list[dict]) -> int:
    """The table of all measured jobs; 1 if a prediction is too far off."""
    lines, turns, worst = [], [], dict.fromkeys((*COUNTERS, "moments"), 0.0)

    def off(what: str, predicted: int, found: int) -> str:
        worst[what] = max(worst[what], abs(predicted - found) / found)
        return f"{found:,} | {predicted - found:+,}"

    for row in bar(rows, "Predicting"):
        workload = Workload(**(SHARED | row["job"]))
        job = dispatch.prepare(workload)
        run = job.run(workload.capacity)
        played = survival.play(run, job.setup.allocator, total_bytes=workload.capacity)
        peaks = (run.peak, played.peak_allocated_bytes, played.peak_reserved_bytes)
        cells = [off(name, peak, row[name]) for name, peak in zip(COUNTERS, peaks)]
        lines.append(f"| {row['group']} | {name_of(row['job'])} | {' | '.join(cells)} |\n")
        found = {(moment["step"], moment["moment"]): moment["requested_bytes"] for moment in row["moments"]}
        inside = []
        for turn in replies.inference(job).turns:
            highest = [off("moments", size, found[turn.turn, moment]) for moment, size in (
                ("prefill", turn.prefill_peak_requested_bytes), ("decode", turn.decode_peak_requested_bytes)) if size]
            inside.append(f"| {turn.turn} | {turn.role} | {turn.tokens:,} | {turn.images} | {turn.new_tokens} | "
                          f"{turn.cached_tokens:,} | {turn.cache_bytes:,} | {' | '.join(highest)} |\n")
        if workload.conversation:
            turns.append(TURNS.format(line=row["group"], job=name_of(row["job"])) + "".join(inside))
    TABLE.write_text(HEAD.format(date=date.today().isoformat(), jobs=len(rows), moments=worst["moments"],
                                 **{name.removesuffix("_bytes"): worst[name] for name in COUNTERS})
                     + "".join(sorted(lines)) + "".join(turns))
    return int(max(worst.values()) > MOST)


def name_of(job: dict) -> str:
    """The job's own keys in a line."""
    said = {name: ", ".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, dict) else value
            for name, value in job.items() if name not in ("mode", "conversation")}
    return " · ".join(str(value) if name == "model" else f"{name} {value}" for name, value in said.items())


if __name__ == "__main__":
    sys.exit(main())
