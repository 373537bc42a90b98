"""Measure two jobs of every known model on the emulated H100 and compare them with predictions.

    pip install -e '.[test]'
    python scripts/check.py models                # measures missing jobs, then the table: an hour or two
    python scripts/check.py models --table-only   # the table of the saved results: traces each model, half an hour

No GPU is needed. The jobs are in calibrate/checks/models.json, two of each model, with different recipes and shapes.
Measurements go to profiles/evidence/models.jsonl, one line per job. Jobs in that file are not run again. The table is
profiles/pages/models.md. Each of its predictions runs in a new process with an empty cache; the table has their time
and memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from calibrate import child
from calibrate.checks import measured_peaks, results_file
from calibrate.checks.directories import EVIDENCE, PAGES, ROOT
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Row
from calibrate.regression.cases import Case
from calibrate.regression.compare import Comparison, compare
from predictor.jobs import dispatch
from predictor.model import models
from predictor.workload.workload import Workload

FILE, PAGE = EVIDENCE / "models.jsonl", PAGES / "models.md"
HEAD = """# Every model, measured and predicted

Peaks in bytes of jobs on the emulated H100 (400 GiB of memory, so that each is measured to its end), and predicted less
measured. Made by `python scripts/check.py models` on {date} from `evidence/models.jsonl`, which has the date and
software of each measurement. {jobs} jobs of {models} models: allocated off by {mean:.4%} on average and at most
{most:.4%}, reserved at most {reserved:.4%}. The last columns are of a first prediction: model built, traced and fitted
in a process and a cache of its own, on {cores} cores: at most {seconds:.0f} s and {memory:.1f} GB.

| kind | job | requested | off by | allocated | off by | reserved | off by | seconds | GB |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
GROWTH = """
## What a first prediction costs

Of one full training step of Qwen2.5-VL with a picture of 512 x 512, plain PyTorch: of its three sizes, and of the 7B
with other numbers of layers in its language model.

| model | layers | parameters | seconds | GB |
| --- | ---: | ---: | ---: | ---: |
"""
SIZES = ("qwen2.5-vl-3b", "qwen2.5-vl-7b", "qwen2.5-vl-72b")
DEEPER, LAYERS = SIZES[1], (7, 14, 56, 112)


@dataclass(frozen=True)
class FirstPrediction:
    """A prediction with an empty cache: wall time in seconds, and the peak host memory of its process in bytes."""

    seconds: float
    resident_bytes: int
    comparison: Comparison


def jobs(args: Namespace) -> list[Row]:
    """The jobs of the JSON list beside this module."""
    return results_file.listed(__file__)


measure = results_file.Kept(FILE, results_file.compact_row(measured_peaks.measured))


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The page of all measured jobs beside first predictions, with the cost of those predictions."""
    cases, _ = measured_peaks.cases(FILE)
    predictions = [first(case) for case in results_file.bar(cases, "Predicting")]
    errors = {counter: [measured_peaks.absolute_error(each.comparison, counter) for each in predictions]
              for counter in ("allocated", "reserved")}
    head = HEAD.format(
        date=date.today().isoformat(), jobs=len(predictions), 
        models=len({each.comparison.case.model for each in predictions}),
        mean=statistics.fmean(errors["allocated"]), most=max(errors["allocated"]), reserved=max(errors["reserved"]),
        cores=os.cpu_count(), seconds=max(each.seconds for each in predictions),
        memory=max(each.resident_bytes for each in predictions) / 1e9)
    lines = [f"{measured_peaks.line_of(each.comparison).rstrip()} {each.seconds:.0f} | "
             f"{each.resident_bytes / 1e9:.1f} |\n"
             for each in sorted(predictions, key=lambda each: each.comparison.case.group)]
    return Outcome({"allocated": max(errors["allocated"])},
                   {PAGE: head + "".join(lines) + GROWTH + "".join(growth())})


def first(case: Case) -> FirstPrediction:
    """Predicts in a new process with an empty cache, then compares, with the formula that is now in that cache."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PEAKCAST_CACHE"] = cache
        return FirstPrediction(*predicted(case.workload.resolved()), compare(case))


def growth() -> Iterator[str]:
    """Rows of three sizes of one model family, then of one model with different numbers of layers."""
    for name in SIZES:
        yield row_of(name, models.find(name).document)
    document = models.find(DEEPER).document
    for layers in LAYERS:
        yield row_of(DEEPER, document | {"text_config": document["text_config"] | {"num_hidden_layers": layers}})


def row_of(name: str, document: dict) -> str:
    """A table row: parameters, and time and memory of a first prediction of a model configuration."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PEAKCAST_CACHE"] = folder
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(document))
        job = {"model": folder, "image_size": 512, "sequence_length": 512, "recipe": "full", "gpu": "h100-80gb"}
        seconds, resident = predicted(job)
        facts = dispatch.prepare(Workload(**job)).formula.facts
    parameters = sum(tensor.numel for tensor in facts.parameters if not tensor.buffer)
    layers = document["text_config"]["num_hidden_layers"]
    return f"| {name} | {layers} | {parameters:,} | {seconds:.1f} | {resident / 1e9:.2f} |\n"


def predicted(job: dict) -> tuple[float, int]:
    """Runs ``peakcast predict`` in a new process. Returns seconds, and the peak host memory of it in bytes."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as workload:
        json.dump(job, workload)
        workload.flush()
        begun = time.monotonic()
        command = child.python("predictor.cli", "predict", "--workload", workload.name, "--json")
        process = subprocess.Popen(**command, stdout=subprocess.DEVNULL, cwd=ROOT)
        _, _, usage = os.wait4(process.pid, 0)
        return time.monotonic() - begun, usage.ru_maxrss * 1024
