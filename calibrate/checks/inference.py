"""Measure inference jobs on emulated GPUs and compare each call of ``generate`` with its prediction.

    pip install -e '.[test]'
    python scripts/check.py inference                # measures missing jobs, then the table: some minutes
    python scripts/check.py inference --table-only   # the table of the saved results

No GPU is needed. The jobs are in calibrate/checks/inference.json, grouped by the feature that they cover. Measurements
go to profiles/evidence/inference.jsonl, one line per job. Jobs in that file are not run again. The table is
profiles/pages/inference.md.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any

from calibrate.checks import results_file
from calibrate.checks.directories import EVIDENCE, PAGES
from calibrate.checks.measured_peaks import name_of
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Row
from calibrate.measure import measure as measuring
from calibrate.regression import compact
from predictor.answer import inference_details
from predictor.answer.prediction import TurnMemory
from predictor.common.json_dataclasses import to_plain
from predictor.jobs import dispatch, survival
from predictor.jobs.inference_job import InferenceJob
from predictor.workload.workload import Workload

PAGE = PAGES / "inference.md"
COUNTERS = ("requested_bytes", "allocated_bytes", "reserved_bytes")
SHARED: dict[str, Any] = {"mode": "inference", "gpu": "h100-80gb", "capacity_bytes": compact.PLENTY_BYTES,
                          "profile": "none"}
HEAD = """# Inference, measured and predicted

Peaks in bytes of calls of transformers' `generate` on emulated GPUs (400 GiB of memory, so that each is measured to its
end; an H100 unless the job says otherwise), and predicted less measured. Made by `python scripts/check.py inference` on
{date} from `evidence/inference.jsonl`, which has the date and software of each measurement. {jobs} jobs: requested off
by at most {requested:.4%}, allocated by {allocated:.4%}, reserved by {reserved:.4%}; of prefill and decoding of each
call, requested by {moments:.4%}.

| line | job | requested | off by | allocated | off by | reserved | off by |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
TURNS = """
## {line}: {job}

Requested bytes, turn by turn.

| turn | role | tokens in | images | new tokens | in cache | cache | prefill | off by | decode | off by |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def jobs(args: Namespace) -> list[Row]:
    """The jobs of the JSON list beside this module."""
    return results_file.listed(__file__)


def measured(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measures one job. Returns its peaks in bytes, and those of each moment of each call; start-up is call 0."""
    record = measuring.measure(Workload(**{**SHARED, **job}))
    return {
        "measured_on": record.job.measured_on.value, "date": record.job.finished_at[:10], "rank": record.rank,
        "software": {name: record.job.software[name] for name in ("torch", "transformers")},
        "seconds": round(record.job.seconds, 1), "moment": record.peak("requested_bytes").moment.value,
        "moments": [to_plain(row) for row in record.job.moments],
    } | {name: record.peak(name).bytes for name in COUNTERS}


measure = results_file.Kept(EVIDENCE / "inference.jsonl", results_file.compact_row(measured), forked=True)


class Errors:
    """The largest error of each counter so far, as a fraction."""

    def __init__(self) -> None:
        self.worst = dict.fromkeys((*COUNTERS, "moments"), 0.0)

    def cells(self, counter: str, predicted: int, measured: int) -> str:
        """Two table cells: measured bytes, and predicted less measured bytes."""
        self.worst[counter] = max(self.worst[counter], abs(predicted - measured) / measured)
        return f"{measured:,} | {predicted - measured:+,}"


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The page of all measured jobs beside predictions. Conversations also get a table of their turns."""
    errors = Errors()
    compared = [compare(row, errors) for row in results_file.bar(rows, "Predicting")]
    head = HEAD.format(date=date.today().isoformat(), jobs=len(rows), moments=errors.worst["moments"],
                       **{name.removesuffix("_bytes"): errors.worst[name] for name in COUNTERS})
    text = head + "".join(sorted(line for line, _ in compared)) + "".join(turns for _, turns in compared)
    return Outcome(errors.worst, {PAGE: text})


def compare(row: Row, errors: Errors) -> tuple[str, str]:
    """The table row of a job, and the table of its turns; the latter is empty without a conversation."""
    workload = Workload(**(SHARED | row["job"]))
    job = dispatch.prepare(workload)
    assert isinstance(job, InferenceJob)  # as every job of the list has mode "inference"
    run = job.run(workload.capacity)
    played = survival.simulate_run(run, job.setup.allocator, total_bytes=workload.capacity)
    peaks = (run.peak, played.peak_allocated_bytes, played.peak_reserved_bytes)
    cells = [errors.cells(name, peak, row[name]) for name, peak in zip(COUNTERS, peaks)]
    line = f"| {row['group']} | {name_of(row['job'])} | {' | '.join(cells)} |\n"
    turns = "".join(turn_lines(inference_details.inference(job).turns, row, errors))
    return line, TURNS.format(line=row["group"], job=name_of(row["job"])) + turns if workload.conversation else ""


def turn_lines(turns: Iterable[TurnMemory], row: Row, errors: Errors) -> Iterator[str]:
    """A table row for each call."""
    measured_bytes = {(moment["step"], moment["moment"]): moment["requested_bytes"] for moment in row["moments"]}
    for turn in turns:
        highest = [errors.cells("moments", size, measured_bytes[turn.turn, moment]) for moment, size in (
            ("prefill", turn.prefill_peak_requested_bytes), ("decode", turn.decode_peak_requested_bytes)) if size]
        yield (f"| {turn.turn} | {turn.role} | {turn.tokens:,} | {turn.images} | {turn.new_tokens} | "
               f"{turn.cached_tokens:,} | {turn.cache_bytes:,} | {' | '.join(highest)} |\n")
