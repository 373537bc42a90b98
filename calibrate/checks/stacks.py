"""Compare jobs under other releases of PyTorch, transformers and DeepSpeed with predictions of those releases.

    pip install -e '.[test]'
    python scripts/check.py stacks                            # every stack that has jobs without a row
    python scripts/check.py stacks --stack "July 2024"        # one of them
    python scripts/check.py stacks --table-only               # the table of the saved results

No GPU is needed. Stacks and jobs are in calibrate/checks/stacks.json. Each stack gets an environment of its own from
PyPI, 5 to 8 GB, in the cache directory; it is removed after its jobs, and an environment that is already there is used
and kept. The jobs are measured and traced in its interpreter (``--python``). Rows go to profiles/evidence/stacks.jsonl,
one line per job; jobs in that file are not run again. The table is profiles/pages/stacks.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from calibrate.checks import results_file
from calibrate.checks.directories import EVIDENCE, PAGES
from calibrate.checks.measured_peaks import COUNTERS
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Row
from calibrate.measure.measure import measure as measure_job
from calibrate.records.record import MeasuredOn
from calibrate.regression import compact
from predictor.answer.predict import predict
from predictor.common import storage
from predictor.common.errors import InputError
from predictor.formula import interpreter
from predictor.workload.workload import Workload

ROWS, PAGE = EVIDENCE / "stacks.jsonl", PAGES / "stacks.md"
MODELS = Path(__file__).with_name("configs")
LISTS = json.loads(Path(__file__).with_suffix(".json").read_text())
SHARED: dict[str, Any] = {"gpu": "h100-80gb", "capacity_bytes": compact.PLENTY_BYTES, "profile": "none"}
NAMED = ("torch", "transformers", "deepspeed", "peft", "bitsandbytes")
HEAD = """# Other releases, measured and predicted

Peaks in bytes on the emulated H100, or the GPU that a job names (400 GiB of memory, so that each job is measured to its
end) under releases of PyTorch, transformers and DeepSpeed, and predicted less measured, with the model traced in that
environment (`--python`). Made by `python scripts/check.py stacks` on {date} from `evidence/stacks.jsonl`, which has the
date of each measurement. {jobs} jobs under {stacks} stacks: requested off by at most {requested:.4%}, allocated by
{allocated:.4%}, reserved by {reserved:.4%}.
"""
TABLE = """
## {stack}

{software}

| line | job | requested | off by | allocated | off by | reserved | off by |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def options(parser: ArgumentParser) -> None:
    """Adds the choice of a stack, and the place of the environments."""
    parser.add_argument("--stack", choices=list(LISTS["stacks"]), help="measure only this one")
    parser.add_argument("--environments", metavar="DIR", help="where the environments are made; default: the cache")


def jobs(args: Namespace) -> list[Row]:
    """Every job under every stack, or under those that have kernels for its GPU (``only`` in stacks.json)."""
    return [{"stack": stack, "group": group, "job": job} for stack in LISTS["stacks"]
            for group, listed in LISTS["jobs"].items() if stack in LISTS["only"].get(group, LISTS["stacks"])
            for job in listed]


def measure(jobs: Sequence[Row], args: Namespace) -> list[Row]:
    """All rows, new ones last. A job that a stack cannot run or that is rejected has a row that says why."""
    rows = results_file.lines(ROWS)
    if args.table_only:
        return rows
    known = [(row["stack"], row["job"]) for row in rows]
    missing = [job for job in jobs if (job["stack"], job["job"]) not in known and args.stack in (None, job["stack"])]
    for stack in dict.fromkeys(job["stack"] for job in missing):
        with _environment(stack, args.environments) as python:
            for job in results_file.bar([job for job in missing if job["stack"] == stack], stack):
                rows.append(row(job, python))
                results_file.append(ROWS, rows[-1])
    return rows


def row(job: Mapping[str, Any], python: str) -> Row:
    """Measures and predicts a job in an environment."""
    found = interpreter.find(python)
    fixed = {"date": date.today().isoformat(), "software": {name: found.versions.get(name) for name in NAMED}}
    try:
        with interpreter.tracing_in(found):
            model = _file(job["job"]["model"])
            workload = Workload.from_mapping({**SHARED, **job["job"], "model": model, "versions": found.versions})
            record = measure_job(workload, device=MeasuredOn.EMULATED)
            predicted = predict(workload.replace(rank=record.rank)).to_json()
    except InputError as error:
        if "was killed" in str(error):  # by this machine, which has too little memory
            raise
        return {**job, **fixed, "rejected": str(error).replace(python, "python")}
    return {**job, **fixed, "rank": record.rank, "seconds": round(record.job.seconds, 1)} | {
        f"{name}_bytes": {"measured": record.peak(f"{name}_bytes").bytes, "predicted": predicted[f"peak_{name}_bytes"]}
        for name in COUNTERS}


def _file(model: str) -> str:
    """The path of a model that is a file in the directory of models, or a known name as it is."""
    return str(MODELS / model) if model.endswith(".json") else model


@contextmanager
def _environment(stack: str, directory: str | None) -> Iterator[str]:
    """The interpreter of a stack's environment: one that is there, or a new one, which is removed at the end."""
    root = Path(directory) if directory else (storage.user_cache_directory() or storage.private_directory()) / "stacks"
    place = root.absolute() / stack.replace(" ", "-").lower()
    python = place / "bin" / "python"
    if python.exists():
        yield str(python)
        return
    try:
        _make(place, LISTS["stacks"][stack])
        yield str(python)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _make(place: Path, packages: Sequence[str]) -> None:
    """Makes an environment. DeepSpeed is built where torch is there already, and builds no extension."""
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--no-cache-dir"]
    steps = ([sys.executable, "-m", "venv", str(place)], [*pip, "wheel", "setuptools", "ninja", "numpy", packages[0]],
             [*pip, "--no-build-isolation", "pillow", *packages])
    for step in steps:
        done = subprocess.run(step, env=os.environ | {"DS_BUILD_OPS": "0"}, stdout=sys.stderr)
        if done.returncode:
            raise InputError(f"{place}: the environment cannot be made: {' '.join(step)} ended with exit code "
                             f"{done.returncode}")


def table(rows: Sequence[Row], args: Namespace) -> Outcome:
    """The page of all stacks, in the order of the list."""
    by_stack: dict[str, list[Row]] = defaultdict(list)
    for entry in rows:
        by_stack[entry["stack"]].append(entry)
    compared = [entry for entry in rows if "rejected" not in entry]
    figures = {name: max((abs(_error(entry, name)) for entry in compared), default=0.0) for name in COUNTERS}
    stacks = [stack for stack in LISTS["stacks"] if stack in by_stack]
    text = HEAD.format(date=date.today().isoformat(), jobs=len(compared), stacks=len(stacks), **figures)
    for stack in stacks:
        last = by_stack[stack][-1]["software"]
        software = " · ".join(f"{name} {version}" for name, version in last.items() if version)
        text += TABLE.format(stack=stack, software=software) + "".join(map(_line, by_stack[stack]))
    unexplained = [entry for entry in compared if _cause(entry) is None]
    judged = {name: max((abs(_error(entry, name)) for entry in unexplained), default=0.0) for name in COUNTERS}
    return Outcome(judged, {PAGE: text})


def _error(entry: Row, counter: str) -> float:
    peak = entry[f"{counter}_bytes"]
    return float(peak["predicted"] / peak["measured"] - 1)


def _line(entry: Row) -> str:
    """A Markdown row. A known cause of a difference follows the job."""
    name = " · ".join(f"{key} {value}" if key != "model" else value for key, value in entry["job"].items())
    if "rejected" in entry:
        return f"| {entry['group']} | {name}: {entry['rejected']} | | | | | | |\n"
    cause = _cause(entry)
    cells = [entry["group"], f"{name} ({cause})" if cause else name]
    for counter in COUNTERS:
        peak = entry[f"{counter}_bytes"]
        cells += [f"{peak['measured']:,}", f"{peak['predicted'] - peak['measured']:+,}"]
    return f"| {' | '.join(cells)} |\n"


def _cause(entry: Row) -> str | None:
    """Why the prediction of a job differs, if that is known: ``causes`` in stacks.json, by stack and group."""
    return LISTS["causes"].get(entry["stack"], {}).get(entry["group"])
