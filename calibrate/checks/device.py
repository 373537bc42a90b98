"""Compare a real GPU, its emulation and the predictions: about 15 minutes on a machine with the GPU.

    pip install -e '.[calibrate]'
    python scripts/check.py device --gpu h200                    # on the machine with the GPU
    python scripts/check.py device --gpu h200 --time-limit 9     # starts nothing after 9 minutes; run again to go on
    python scripts/check.py device --gpu h200 --device emulated  # the same on the emulated GPU: no GPU is needed
    python scripts/check.py device --gpu h200 --table-only       # the page from the saved files

Measures in this order: the memory of the CUDA context and of each library (NVML); allocations of single operators that
the tracer does not list; after which operation memory outside PyTorch's allocator grows; the jobs of
calibrate/checks/device.json, explained allocation by allocation; courses of device_course.json, whose batches vary,
after every step; loops as people write them (loops.json); the programs of calibrate/checks/programs/; the jobs of
device_further.json, of other models and recipes, only their peaks; five of the first jobs once more; for two jobs the
smallest capacity at which they survive; and one job that must run out of memory. On the emulated GPU it then learns
formulas of two programs, and runs the programs again with what a real GPU does otherwise.
Everything is written to profiles/<gpu>/ (--directory names another place): measurements to device/, with the memory
histories of a real GPU; the profile fitted to its jobs to profile-device.json. The page goes to
profiles/pages/device_<gpu>.md, or to device.md in that other place.
What is already there is not measured again. Nothing leaves this machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from calibrate.campaign import consistency, design, environment
from calibrate.checks import course, device_causes, loops, measured_peaks, programs
from calibrate.checks.device_page import page_of
from calibrate.checks.directories import PAGES, PROFILES
from calibrate.checks.outcome import Outcome
from calibrate.checks.programs.loops import LOOPS
from calibrate.checks.results_file import append, lines, listed
from calibrate.checks.survival_limit import sweep
from calibrate.emulator import Injection
from calibrate.measure import measure as measuring
from calibrate.measure import warm_workers
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.probes import device_query, libraries, operators
from calibrate.records import record
from calibrate.records.record import MeasuredOn
from calibrate.regression import compact
from predictor import cli, snapshot
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.json_dataclasses import to_plain
from predictor.snapshot.replay import replay
from predictor.workload.workload import Workload

JOBS = Path(__file__).with_suffix(".json")
FURTHER = Path(__file__).with_name("device_further.json")
COURSES = Path(__file__).with_name("device_course.json")
OUTSIDE = Path(__file__).with_name("device_outside.json")
WHOLE = "gemma-3-4b"
"""A model of the loops that is left out: beside others it may not have room."""
LARGE_BYTES = 100 << 30
"""Memory of a GPU on which four jobs have room beside each other."""
ALONE = (("several_processes",), ("one_rank_nccl",))
OTHERS = (
    ("compiled", "compiled"), ("trainer_run", "bf16"), ("trainer_run", "fp16"), ("varied_steps",),
    ("varied_steps", "expandable_segments:True"), ("own_loop", "adafactor", "3", "700"),
    ("own_loop", "contrastive", "6", "333"), ("compiled", "eager"))
"""Programs of calibrate/checks/programs/, each with its arguments. A setting of the allocator among them is set in its
environment. Those of ``ALONE`` have the GPU for themselves, because NVML counts the memory of the whole GPU."""
AT_ONCE = 4
"""Number of the others that run at a time on a GPU of more than :data:`LARGE_BYTES`; half as many on a smaller one."""
LEARNED = tuple(words for words in OTHERS if words[0] == "own_loop")
"""Programs whose formulas are learned on the emulated GPU, at shapes that were not measured."""
LEARNED_AT = ("--batches", "2,4", "--sequences", "128,256,512")
PATCHES = {"trainer_run": (4, 336, 14, 1024), "contrastive": (6, 224, 32, 768)}
"""Word of a program -> its convolution of patches: pictures, side, patch, channels."""
ADDRESS_STEP_BYTES = 32 << 20
"""The step of the addresses in the histories of a real GPU."""
FILES = "device"
"""Name of the directory that holds the measurements."""
AGAIN = 5
"""Number of jobs that are measured twice."""
LIMITED = (
    {"model": "grouped-2-2", "per_device_train_batch_size": 4, "sequence_length": 1024, "zero_stage": 2,
     "data_parallel_size": 8, "rank": 7},
    {"model": "llava-1.5-7b-2-2", "per_device_train_batch_size": 4, "sequence_length": 1024, "zero_stage": 2,
     "data_parallel_size": 2, "rank": 1, "gradient_checkpointing": False},
)
TOO_LARGE = {"model": "llava-1.5-7b", "per_device_train_batch_size": 16, "sequence_length": 1024, "zero_stage": 2}
"""A job whose peak is above 139 GiB on one GPU."""


class Campaign:
    """The steps of the measurement. Each step skips what was measured before."""

    def __init__(self, where: MeasuringDevice, directory: Path, jobs: Path, seconds: float | None) -> None:
        self._where, self._directory, self._list = where, directory, jobs
        self._is_real = where.device is MeasuredOn.DEVICE
        self._ended = None if seconds is None else time.monotonic() + seconds
        self._at_once = AT_ONCE if gpus.find(where.gpu).capacity_bytes > LARGE_BYTES else AT_ONCE // 2

    def run(self) -> bool:
        """Runs all steps in order. Returns whether everything is measured."""
        alone = self._libraries, self._operators, self._outside, self._jobs, self._alone
        together = self._courses, self._loops, self._programs, self._further
        last = (self._profile,) if self._is_real else (self._learned, self._as_on_device)
        for step in (*alone, *together, self._again, self._limits, self._too_large, self._replays, *last):
            if self._left() == 0:
                print(f"the time is over before {step.__name__.strip('_')}: the same command goes on", file=sys.stderr)
                return False
            print(step.__name__.strip("_").capitalize(), file=sys.stderr)
            step()
        return self._left() != 0

    def _left(self) -> float | None:
        """Seconds left until the time limit; None without a limit."""
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
            write_whole(str(path), json.dumps(to_plain(measured()), indent=1).encode() + b"\n")

    def _jobs(self) -> None:
        self._calibrate(self._list, "jobs.jsonl", "--snapshots", str(self._file("histories")))

    def _alone(self) -> None:
        """Programs that measure the memory of the whole GPU."""
        self._append("programs.jsonl", ALONE, self._program, at_once=1)

    def _outside(self) -> None:
        """What grows outside PyTorch's allocator, operation by operation. The emulated GPU has nothing there."""
        if self._is_real:
            self._once("outside.json", self._grown)

    def _grown(self) -> dict[str, Any]:
        jobs = json.loads(OUTSIDE.read_text())
        workloads = [loops.workload_of({**job, "gpu": self._where.gpu}).resolved() for job in jobs]
        answer = device_query.run_task(f"{programs.__name__}.outside", self._where, workloads)
        return {"jobs": [{**grown, "job": job} for job, grown in zip(jobs, answer["jobs"])]}

    def _courses(self) -> None:
        """Courses of varied batches: what PyTorch's counters say after every step, several at a time."""
        self._append("courses.jsonl", listed(str(COURSES)), self._course)

    def _course(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        return course.measured_row(course.Job.of({**entry["job"], "gpu": self._where.gpu}), self._where)

    def _loops(self) -> None:
        """Loops as people write them, several at a time."""
        jobs = [entry["job"] for entry in listed(loops.__file__) if entry["job"]["model"] != WHOLE]
        self._append("loops.jsonl", [[job, loop] for loop in LOOPS for job in jobs], self._loop)

    def _loop(self, task: tuple[Mapping[str, Any], str]) -> dict[str, Any]:
        job, loop = task
        answer = loops.measured(loops.workload_of({**job, "gpu": self._where.gpu}), loop, self._where)
        return {"software": answer["software"]} | {
            f"{counter}_bytes": answer[f"{counter}_bytes"] for counter in measured_peaks.COUNTERS}

    def _programs(self) -> None:
        """Programs of which only PyTorch's own counters matter, several at a time."""
        self._append("programs.jsonl", OTHERS, self._program)

    def _further(self) -> None:
        """Jobs of which only PyTorch's own counters matter, several at a time."""
        self._append("further.jsonl", listed(str(FURTHER)), self._peaks)

    def _append(self, name: str, tasks: Iterable[Any], measured: Callable[[Any], dict], at_once: int = 0) -> None:
        """Appends a row for each task that has none yet: what was measured, or only ``error``. Several run at a time,
        unless ``at_once`` says how many."""
        path = self._file(name)
        known = [row["task"] for row in lines(path)]
        missing = [task for task in json.loads(json.dumps(list(tasks))) if task not in known]

        def row(task: Any) -> dict | None:
            if self._left() == 0:
                return None
            try:
                return measured(task)
            except InputError as error:
                return {"error": str(error)}

        with ThreadPoolExecutor(at_once or self._at_once) as pool:
            answers = map(row, missing) if at_once == 1 else pool.map(row, missing)  # learn wants the main thread
            for task, answer in zip(missing, answers):
                if answer is not None:
                    append(path, {"task": task, "date": date.today().isoformat(), **answer})

    def _peaks(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        return measured_peaks.measured({**entry["job"], "gpu": self._where.gpu}, self._where.device)

    def _program(self, words: Sequence[str], inject: Injection | None = None) -> dict[str, Any]:
        name, *rest = words
        settings = {variable: word for word in rest if ":" in word for variable in measuring.ALLOCATOR_VARIABLES}
        return device_query.run_module(f"{programs.__name__}.{name}", replace(self._where, inject=inject),
                                       *(word for word in rest if ":" not in word), variables=settings)

    def _learned(self) -> None:
        """Learned formulas, asked for the shapes of their programs."""
        self._append("learned.jsonl", LEARNED, self._formula, at_once=1)

    def _formula(self, words: Sequence[str]) -> dict[str, Any]:
        name, kind, batch, sequence = words
        with tempfile.TemporaryDirectory() as directory, redirect_stdout(sys.stderr):
            file, command = f"{directory}/{kind}.npz", ("python", "-m", f"{programs.__name__}.{name}", kind)
            code = cli.main(["learn", "--gpu", self._where.gpu, *LEARNED_AT, "-o", file, "--", *command, "{batch}",
                             "{sequence}"])
            if code:
                raise InputError(f"peakcast learn ended with {code}")
            predicted = predict(Workload(model=file, per_device_train_batch_size=int(batch), gpu=self._where.gpu,
                                         sequence_length=int(sequence), profile="none"))
        return {f"{counter}_bytes": getattr(predicted, f"peak_{counter}_bytes") for counter in measured_peaks.COUNTERS}

    def _as_on_device(self) -> None:
        """Programs once more, with the convolutions and the addresses of a real GPU: do they cause the differences?"""
        self._append("explained.jsonl", OTHERS, self._explained, at_once=1)

    def _explained(self, words: Sequence[str]) -> dict[str, Any]:
        patches = next((PATCHES[word] for word in words if word in PATCHES), None)
        inject = Injection(address_step_bytes=ADDRESS_STEP_BYTES,
                           convolution_fixed_bytes=device_causes.convolution_bytes(*patches) if patches else 0)
        measured = self._program(words, inject)
        return {"inject": inject.stated()} | {
            f"{counter}_bytes": measured[f"{counter}_bytes"] for counter in measured_peaks.COUNTERS}

    def _again(self) -> None:
        first_of_group = {job["group"]: job for job in reversed(json.loads(self._list.read_text())["jobs"])}
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "again.json"
            path.write_text(json.dumps({"jobs": list(first_of_group.values())[-AGAIN:]}))
            self._calibrate(path, "again.jsonl")

    def _profile(self) -> None:
        self._calibrate(self._list, "jobs.jsonl", "-o", str(self._directory / "profile-device.json"), "--force")

    def _calibrate(self, jobs: Path, name: str, *more: str) -> None:
        """Measures jobs that have no row yet. The fitted profile is kept only if ``more`` names its file (``-o``)."""
        left = self._left()
        more += () if left is None else ("--time-limit", f"{max(left / 60, 0.1):.2f}")
        with tempfile.TemporaryDirectory() as directory, redirect_stdout(sys.stderr):
            code = cli.main(["calibrate", "--device", "cuda" if self._is_real else "emulated", "--gpu", self._where.gpu,
                             "--jobs-from", str(jobs), "--measurements", str(self._file(name)),
                             "-o", f"{directory}/profile.json", *more])
        if code:
            raise SystemExit(code)

    def _replays(self) -> None:
        """Replays each history through the simulated allocator, then deletes those of an emulated GPU."""
        path = self._file("replays.jsonl")
        known = {row["id"] for row in lines(path)}
        files = sorted(self._file("histories").glob("*.pickle.gz"), key=lambda file: file.stat().st_size)
        for file in files:
            name = file.name.removesuffix(".pickle.gz")
            if name not in known:
                append(path, {"id": name, **replayed(file)})
        for file in () if self._is_real else files:
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
        """A job that runs out of memory. The emulated GPU has what the real one left to PyTorch, if that is known."""
        workload = Workload(**TOO_LARGE, gpu=self._where.gpu, profile="none")
        real = self._directory / FILES / f"{MeasuredOn.DEVICE.value}-too-large.json"
        if not self._is_real and real.is_file():
            workload = workload.replace(capacity_bytes=device_causes.room_of(record.read(real)))
        self._once("too-large.json", lambda: measuring.measure(workload, device=self._where.device).to_json())


def replayed(file: Path) -> dict:
    """A memory history replayed in the simulated allocator; only ``error`` if it cannot be replayed."""
    try:
        result = replay(snapshot.read(file))
    except InputError as error:
        return {"error": str(error)}
    return {"events": result.events, "agrees": result.agrees,
            "divergence": result.divergence and str(result.divergence),
            "segments": len(result.segments), "same_segments": result.segments == result.recorded.segments,
            "peak_reserved_bytes": result.peak_reserved_bytes,
            "recorded_peak_reserved_bytes": result.recorded.peak_reserved_bytes}


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--gpu", required=True, help="name of the GPU, such as h200")
    parser.add_argument("--device", choices=("cuda", "emulated"), default="cuda", help="default: cuda")
    parser.add_argument("--directory", type=Path, help="default: profiles/<gpu>")
    parser.add_argument("--time-limit", type=float, metavar="MINUTES", help="start no job after this many minutes")


def jobs(args: Namespace) -> Path:
    return JOBS


def measure(jobs: Path, args: Namespace) -> bool:
    """Measures what is missing. Returns whether everything is measured."""
    if args.table_only:
        return True
    gpu = gpus.find(args.gpu).name
    where = MeasuringDevice(gpu, MeasuredOn.DEVICE if args.device == "cuda" else MeasuredOn.EMULATED)
    consistency.check_gpu(gpu, environment.read_environment(where).device)
    seconds = None if args.time_limit is None else 60 * args.time_limit
    directory = _directory(args)
    (directory / FILES).mkdir(parents=True, exist_ok=True)
    with warm_workers.forked_jobs():
        return Campaign(where, directory, jobs, seconds).run()


def table(done: bool, args: Namespace) -> Outcome:
    """The page of what was measured so far."""
    gpu = gpus.find(args.gpu).name
    page = args.directory / "device.md" if args.directory else PAGES / f"device_{gpu}.md"
    return Outcome({"campaigns that are not done": int(not done)}, {page: page_of(gpu, _directory(args) / FILES)})


def _directory(args: Namespace) -> Path:
    return args.directory or PROFILES / gpus.find(args.gpu).name
