"""Put a GPU, its emulation and the predictions side by side: some ten minutes on a machine with the GPU.

    pip install -e '.[calibrate]'
    python scripts/check.py device --gpu h200                    # where the GPU is
    python scripts/check.py device --gpu h200 --time-limit 9     # begins nothing later; the same command goes on
    python scripts/check.py device --gpu h200 --device emulated  # the same on the emulated GPU: no GPU is needed
    python scripts/check.py device --gpu h200 --table-only       # the page from what is saved

In this order: what the CUDA context and each library take (NVML), what single operators allocate beyond the tracer's
list, the jobs of calibrate/checks/device.json explained allocation by allocation, five of them once more, for two jobs
the memory with which they just survive, and one that is to run out of it. Everything goes to profiles/<gpu>/
(--directory names another place): what was measured to device/, where the five smallest histories of a real GPU stay
too, the profile fitted to its jobs to profile-device.json, the page to device.md. What is there is not measured again.
Nothing leaves this machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import date
from pathlib import Path

from calibrate.campaign import consistency, design, environment
from calibrate.checks.device_page import page_of
from calibrate.checks.directories import PROFILES
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import append, lines
from calibrate.checks.survival_limit import sweep
from calibrate.measure import measure as measuring
from calibrate.measure import warm_workers
from calibrate.measure.device_choice import Where
from calibrate.probes import libraries, operators
from calibrate.records.record import MeasuredOn
from calibrate.regression import compact
from predictor import cli, snapshot
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.json_dataclasses import to_plain
from predictor.snapshot.replay import replay
from predictor.workload.workload import Workload

JOBS = Path(__file__).with_suffix(".json")
FILES = "device"
"""Directory of what was measured."""
AGAIN, HISTORIES = 5, 5
"""How many jobs are measured twice, and how many histories are kept."""
LIMITED = (
    {"model": "grouped-2-2", "per_device_train_batch_size": 4, "sequence_length": 1024, "zero_stage": 2,
     "data_parallel_size": 8, "rank": 7},
    {"model": "llava-1.5-7b-2-2", "per_device_train_batch_size": 4, "sequence_length": 1024, "zero_stage": 2,
     "data_parallel_size": 2, "rank": 1, "gradient_checkpointing": False},
)
TOO_LARGE = {"model": "llava-1.5-7b", "per_device_train_batch_size": 16, "sequence_length": 1024, "zero_stage": 2}
"""More than 139 GiB on one GPU."""


class Campaign:
    """The steps, each of which leaves what was measured alone."""

    def __init__(self, where: Where, directory: Path, jobs: Path, seconds: float | None) -> None:
        self._where, self._directory, self._list = where, directory, jobs
        self._is_real = where.device is MeasuredOn.DEVICE
        self._ended = None if seconds is None else time.monotonic() + seconds

    def run(self) -> bool:
        """All steps in order; whether all is measured."""
        for step in (self._libraries, self._operators, self._jobs, self._again, self._limits, self._too_large,
                     self._replays, *([self._profile] if self._is_real else [])):
            if self._left() == 0:
                print(f"the time is over before {step.__name__.strip('_')}: the same command goes on", file=sys.stderr)
                return False
            print(step.__name__.strip("_").capitalize(), file=sys.stderr)
            step()
        return self._left() != 0

    def _left(self) -> float | None:
        """Seconds that are left; None without a limit."""
        return None if self._ended is None else max(0.0, self._ended - time.monotonic())

    def _file(self, name: str) -> Path:
        return self._directory / FILES / f"{self._where.device.value}-{name}"

    def _libraries(self) -> None:
        self._once("libraries.json", lambda: libraries.measure(self._where))

    def _operators(self) -> None:
        self._once("operators.json", lambda: operators.measure(self._where))

    def _once(self, name: str, measured: Callable) -> None:
        path = self._file(name)
        if not path.is_file():
            write_whole(path, json.dumps(to_plain(measured()), indent=1).encode() + b"\n")

    def _jobs(self) -> None:
        self._calibrate(self._list, "jobs.jsonl", "--snapshots", str(self._file("histories")))

    def _again(self) -> None:
        first_of_group = {job["group"]: job for job in reversed(json.loads(self._list.read_text())["jobs"])}
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "again.json"
            path.write_text(json.dumps({"jobs": list(first_of_group.values())[-AGAIN:]}))
            self._calibrate(path, "again.jsonl")

    def _profile(self) -> None:
        self._calibrate(self._list, "jobs.jsonl", "-o", str(self._directory / "profile-device.json"), "--force")

    def _calibrate(self, jobs: Path, name: str, *more: str) -> None:
        """Measures what is missing; its profile is fitted to some of the jobs, unless it is given a name (``-o``)."""
        left = self._left()
        more += () if left is None else ("--time-limit", f"{max(left / 60, 0.1):.2f}")
        with tempfile.TemporaryDirectory() as directory, redirect_stdout(sys.stderr):
            code = cli.main(["calibrate", "--device", "cuda" if self._is_real else "emulated", "--gpu", self._where.gpu,
                             "--jobs-from", str(jobs), "--measurements", str(self._file(name)),
                             "-o", f"{directory}/profile.json", *more])
        if code:
            raise SystemExit(code)

    def _replays(self) -> None:
        """Each history through the simulated allocator; then the smallest ones are kept alone."""
        path = self._file("replays.jsonl")
        known = {row["id"] for row in lines(path)}
        files = sorted(self._file("histories").glob("*.pickle.gz"), key=lambda file: file.stat().st_size)
        for file in files:
            name = file.name.removesuffix(".pickle.gz")
            if name not in known:
                append(path, {"id": name, **replayed(file)})
        for file in files[HISTORIES if self._is_real else 0:]:
            file.unlink()

    def _limits(self) -> None:
        path = self._file("limits.jsonl")
        known = [row["job"] for row in lines(path)]
        for keys in LIMITED:
            job = {**keys, "gpu": self._where.gpu}
            if job not in known and self._left() != 0:
                append(path, compact.row(job, {**sweep(design.workload(job), self._where.device),
                                                "date": date.today().isoformat()}))

    def _too_large(self) -> None:
        workload = Workload(**TOO_LARGE, gpu=self._where.gpu, profile="none")
        self._once("too-large.json", lambda: measuring.measure(workload, device=self._where.device).to_json())


def replayed(file: Path) -> dict:
    """What became of a recorded history in the simulation; ``error`` alone, if it cannot be replayed."""
    try:
        found = replay(snapshot.read(file))
    except InputError as error:
        return {"error": str(error)}
    return {"events": found.events, "agrees": found.agrees, "divergence": found.divergence and str(found.divergence),
            "segments": len(found.segments), "same_segments": found.segments == found.recorded.segments,
            "peak_reserved_bytes": found.peak_reserved_bytes,
            "recorded_peak_reserved_bytes": found.recorded.peak_reserved_bytes}


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--gpu", required=True, help="which GPU it is, such as h200")
    parser.add_argument("--device", choices=("cuda", "emulated"), default="cuda", help="default: cuda")
    parser.add_argument("--directory", type=Path, help="default: profiles/<gpu>")
    parser.add_argument("--time-limit", type=float, metavar="MINUTES", help="begin nothing after so many minutes")


def jobs(given: Namespace) -> Path:
    return JOBS


def measure(jobs: Path, given: Namespace) -> bool:
    """Whether all is measured."""
    if given.table_only:
        return True
    gpu = gpus.find(given.gpu).name
    where = Where(gpu, MeasuredOn.DEVICE if given.device == "cuda" else MeasuredOn.EMULATED)
    consistency.check_gpu(gpu, environment.look(where).device)
    seconds = None if given.time_limit is None else 60 * given.time_limit
    directory = _directory(given)
    (directory / FILES).mkdir(parents=True, exist_ok=True)
    with warm_workers.jobs():
        return Campaign(where, directory, jobs, seconds).run()


def table(done: bool, given: Namespace) -> Outcome:
    """The page of whatever is there."""
    directory = _directory(given)
    return Outcome({"campaigns that are not done": int(not done)},
                   {directory / "device.md": page_of(gpus.find(given.gpu).name, directory / FILES)})


def _directory(given: Namespace) -> Path:
    return given.directory or PROFILES / gpus.find(given.gpu).name
