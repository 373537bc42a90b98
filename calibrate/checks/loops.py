"""Run jobs in loops that people write, and see whether what they reserve is in the range of ``predict --loops``.

    pip install -e '.[test]'
    python scripts/check.py loops                # measures missing jobs, then the table: ten minutes
    python scripts/check.py loops --table-only   # predicts the saved jobs again: traces formulas

No GPU is needed. The jobs are in calibrate/checks/loops.json, the loops in calibrate/checks/programs/loops.py.
Measurements go to profiles/evidence/loops.jsonl, one line per job. The table is profiles/pages/loops.md.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from datetime import date
from typing import Any

from calibrate.campaign import design
from calibrate.checks import results_file
from calibrate.checks.directories import EVIDENCE, PAGES, model_of
from calibrate.checks.measured_peaks import name_of
from calibrate.checks.outcome import Outcome
from calibrate.checks.programs.loops import LOOPS, STEPS
from calibrate.checks.results_file import Row
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.probes import device_query
from calibrate.records.record import MeasuredOn
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.jobs import dispatch
from predictor.workload.workload import Workload

FILE, PAGE = EVIDENCE / "loops.jsonl", PAGES / "loops.md"
PROGRAM = "calibrate.checks.programs.loops"
EMULATED = MeasuringDevice(gpus.find("h100-80gb").name, MeasuredOn.EMULATED)
HEAD = """# Reserved memory in loops as people write them

Jobs on the emulated H100, most of few layers, each in {loops} loops of {steps} steps that differ in details only. The
range is that of reserved bytes with `peakcast predict --loops`: of the reference loop with one batch, with a batch for
each step, with outputs kept, and others. That a loader which is one batch ahead has two batches from the first step on
was learned from these measurements. Gemma 3 4B, of which a slightly different loop was first seen to reserve more
(2.4%), is there at whole depth, too. *Apart* is the spread of the measured peaks. Made by `python scripts/check.py
loops` on {date} from `evidence/loops.jsonl`, which has the date and software of each measurement. {inside} of {all}
measured peaks are in the range.

| job | range | apart | loop | requested | reserved | in the range |
| --- | ---: | ---: | --- | ---: | ---: | --- |
"""


def workload_of(keys: Mapping[str, Any]) -> Workload:
    """The workload of an entry of the list, with the images that its model takes."""
    return dispatch.resolve(design.workload(
        {"gpu": "h100-80gb", "profile": "emulated", **keys, "model": model_of(keys["model"])})).workload


def jobs(args: Namespace) -> list[Row]:
    """The jobs of the JSON list beside this module."""
    return results_file.listed(__file__)


def _row(entry: Mapping[str, Any]) -> Row:
    """A job measured in each loop."""
    workload = workload_of(entry["job"])
    answers = {loop: measured(workload, loop) for loop in LOOPS}
    return {**entry, "measured_on": "emulated", "date": date.today().isoformat(),
            "software": next(iter(answers.values()))["software"], "loops": {
                loop: {name: answer[name] for name in ("requested_bytes", "allocated_bytes", "reserved_bytes")}
                for loop, answer in answers.items()}}


def measured(workload: Workload, loop: str, where: MeasuringDevice = EMULATED) -> dict[str, Any]:
    """The program's answer."""
    return device_query.run_task(PROGRAM, where, {"workload": workload.resolved(), "loop": loop})


measure = results_file.Kept(FILE, _row)


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The page of all measured jobs with the ranges that are predicted now."""
    lines, verdicts = [], []
    for row in rows:
        workload = workload_of(row["job"])
        predicted = predict(workload.replace(gpu=None), loops=True)
        low, high = predicted.peak_reserved_bytes_low, predicted.peak_reserved_bytes_high
        assert low is not None and high is not None  # --loops makes an interval
        reserved = [peaks["reserved_bytes"] for peaks in row["loops"].values()]
        apart = max(reserved) / min(reserved) - 1
        for loop, peaks in row["loops"].items():
            verdicts.append(low <= peaks["reserved_bytes"] <= high)
            lines.append(f"| {name_of(row['job'])} | {low:,} to {high:,} | {apart:.2%} | {loop} | "
                         f"{peaks['requested_bytes']:,} | {peaks['reserved_bytes']:,} | "
                         f"{'yes' if verdicts[-1] else 'no'} |\n")
    head = HEAD.format(loops=len(LOOPS), steps=STEPS, date=date.today().isoformat(), inside=sum(verdicts),
                       all=len(verdicts))
    return Outcome({"peaks out of the range": verdicts.count(False)}, {PAGE: head + "".join(lines)})
