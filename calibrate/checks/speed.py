"""Time predictions, plans and searches, and how they grow, beside other people's estimators.

    pip install -e '.[test]'
    python scripts/check.py speed                # measures all, then the page: a quarter of an hour
    python scripts/check.py speed --only plan    # only what has this in its name
    python scripts/check.py speed --table-only   # the page of the saved results

Measure on an idle machine. Each command runs in a new process; short ones run several times, and the median counts.
Results go to profiles/evidence/speed.jsonl, one line per benchmark and run; the page, profiles/pages/speed.md with its
plot, has the latest of each.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from calibrate.checks import growth_plot, results_file
from calibrate.checks.directories import EVIDENCE, PAGES, ROOT
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Row
from predictor.common.errors import InputError
from predictor.model import models

FILE, PAGE, PLOT = EVIDENCE / "speed.jsonl", PAGES / "speed.md", PAGES / "speed.svg"
SHORT_SECONDS, TIMES = 3.0, 5
"""A benchmark that takes less is run so many times."""
COMMAND = """import sys
from predictor.__main__ import main
sys.exit(main())
"""
TRACED = "traced"
"""First word of a command that finds no shipped formulas, nor do the processes that it starts."""
INSIDE = """import sys, time
import numpy as np
from predictor import Workload, predict
from predictor.events import timeline
from predictor.jobs import dispatch
job = Workload(model="llava-1.5-7b", recipe="finetune", per_device_train_batch_size=16, sequence_length=1024,
               images_per_sample=1, zero_stage=2, data_parallel_size=8, gpu="a100-80gb")
prepared = dispatch.prepare(job)
form = timeline.closed_form(prepared.composed(prepared.sure_bytes, 0), at_least=prepared.lowest())
random = np.random.default_rng(0)
shapes = [random.integers(2, 64, 1_000_000), random.integers(577, 8192, 1_000_000)]
tasks = {"prediction": lambda: predict(job), "shapes": lambda: form.peaks(*shapes, shapes[0], prepared.gpu)}
task = tasks[sys.argv[1]]
task()
times = []
for _ in range(9):
    begun = time.perf_counter()
    task()
    times.append(time.perf_counter() - begun)
print(sorted(times)[4])
"""
"""Prints the median time of a task in a process that has done it before."""
PEER = """import sys
from calibrate.regression.baselines import BASELINES
from predictor import Workload
job = Workload(model="llava-1.5-7b", recipe="finetune", per_device_train_batch_size=16, sequence_length=1024,
               zero_stage=2, data_parallel_size=8)
estimate = BASELINES[sys.argv[1]].estimate(job)
if estimate.bytes is None:
    sys.exit(estimate.why_not)
"""
COURSE = """import resource, sys
import numpy as np
from predictor import cli
tokens = np.clip(np.random.default_rng(0).lognormal(6.9, 0.35, 20_000).astype(int), 620, 2048).tolist()
with open(sys.argv[1] + "/lengths.csv", "w") as file:
    file.write("tokens,images\\n" + "".join(f"{length},1\\n" for length in tokens))
code = cli.main(["predict", "llava-1.5-7b", "--per-device-train-batch-size", "4", "--sequence-length", "2048",
                 "--zero-stage", "2", "--data-parallel-size", "8", "--samples", file.name, "--steps", *sys.argv[2:]])
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
if most > 1e9:
    print(f"{most:,} bytes of memory", file=sys.stderr)
    sys.exit(3)  # 1 is an answer: the job does not fit
sys.exit(code)
"""
"""Simulates a course of 20,000 samples: of so many steps, in at most 1 GB of the host's memory."""
PICTURE = ("--image-size", "768x1024")
QWEN = ("Qwen/Qwen2.5-VL-7B-Instruct", "--recipe", "lora", "--lora", "r=16", *PICTURE)
FIRST = ("predict", *QWEN, "--sequence-length", "2048", "--gpu", "rtx-4090")
PLANNED = ("plan", *QWEN, "--sequence-length", "2048", "--gpu", "rtx-4090")
LLAVA = ("predict", "llava-1.5-7b", "--recipe", "finetune", "--per-device-train-batch-size", "16",
         "--sequence-length", "1024", "--zero-stage", "2", "--data-parallel-size", "8")
CONFIG = "CONFIG"
"""In the arguments of a process: the folder with the benchmark's own ``config.json``."""


@dataclass(frozen=True)
class Benchmark:
    """Something that is timed.

    Attributes:
        name: the words of its row.
        words: arguments of the Python process.
        target: the largest number of seconds that it should take; None without a target.
        code: the program that the process runs.
        before: arguments of processes that run first, untimed, with the same cache.
        series, size: the series of benchmarks whose growth is measured, and the size of this one.
        config: the model's ``config.json``, if it is no known one.
        prints: whether the process prints the seconds itself.
    """

    name: str
    words: tuple[str, ...]
    target: float | None = None
    code: str = COMMAND
    before: tuple[tuple[str, ...], ...] = ()
    series: str = ""
    size: int = 0
    config: str = ""
    prints: bool = False

    def seconds(self) -> float:
        """The time that it takes, with a cache of its own."""
        with tempfile.TemporaryDirectory() as cache:
            (Path(cache) / "config.json").write_text(self.config)
            for words in self.before:
                self._run(words, cache)
            times = [self._timed(cache)]
            while times[0] < SHORT_SECONDS and len(times) < TIMES and not self.prints:
                times.append(self._timed(cache))
        return statistics.median(times)

    def _timed(self, cache: str) -> float:
        begun = time.perf_counter()
        printed = self._run(self.words, cache)
        return float(printed) if self.prints else time.perf_counter() - begun

    def _run(self, words: Sequence[str], cache: str) -> str:
        environment = {**os.environ, "PEAKCAST_CACHE": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled
        packages = _without_formulas(Path(cache) / "packages") if words[0] == TRACED else ROOT
        words = [cache if word == CONFIG else word for word in words if word != TRACED]
        process = subprocess.run([sys.executable, "-c", self.code, *words], env=environment, cwd=packages, text=True,
                                 capture_output=True, check=False)  # Python imports from there first
        if process.returncode not in (0, 1):
            raise InputError(f"{self.name}: {process.stderr.strip().splitlines()[-1:] or process.returncode}")
        return process.stdout


def _without_formulas(directory: Path) -> Path:
    """A directory of our packages, without shipped formulas."""
    if not directory.exists():
        (directory / "profiles").mkdir(parents=True)
        for source in (ROOT / "predictor", ROOT / "calibrate", *(ROOT / "profiles").iterdir()):
            if source.name != "formulas":
                (directory / source.relative_to(ROOT)).symlink_to(source)
    return directory


def options(parser: ArgumentParser) -> None:
    """Adds the check's own option."""
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only benchmarks with this in their name")


def jobs(args: Namespace) -> list[Benchmark]:
    """The benchmarks to run."""
    return [one for one in benchmarks() if args.only in one.name]


def benchmarks() -> Iterator[Benchmark]:
    """All benchmarks."""
    first, other = (TRACED, *FIRST), (TRACED, *_with(FIRST, "--sequence-length", "3072"))
    yield Benchmark("Qwen2.5-VL-7B, LoRA: first prediction", first, 10)
    yield Benchmark("Qwen2.5-VL-7B, LoRA: another sequence length", other, 0.5, before=(first,))
    yield Benchmark("Qwen2.5-VL-7B, LoRA: first micro-batch of several samples",
                    (*first, "--per-device-train-batch-size", "2"))
    yield Benchmark("Qwen2.5-VL-7B, LoRA: with a shipped formula", FIRST, 0.4)
    yield Benchmark("Qwen3-8B, full: first prediction", (
        TRACED, "predict", "qwen3-8b", "--recipe", "full", "--sequence-length", "2048", "--gpu", "h100-80gb"), 8)
    yield Benchmark("Qwen2.5-VL-72B, full, ZeRO-3: first prediction", (
        TRACED, "predict", "qwen2.5-vl-72b", "--recipe", "full", "--zero-stage", "3", "--data-parallel-size", "64",
        "--image-size", "512", "--sequence-length", "2048", "--gpu", "h100-80gb"), 15)
    yield Benchmark("LLaVA-1.5-7B, ZeRO-2 on 8 GPUs: with a shipped formula", LLAVA, 0.4)
    yield Benchmark("LLaVA-1.5-7B: whole prediction in a process that made one", ("prediction",), 0.025, INSIDE,
                    prints=True)
    yield Benchmark("LLaVA-1.5-7B: requested peaks of a million shapes", ("shapes",), 0.4, INSIDE, prints=True)
    yield Benchmark("Qwen2.5-VL-7B, LoRA: plan on one RTX 4090", (TRACED, *PLANNED), 20)
    yield Benchmark("Qwen2.5-VL-7B, LoRA: plan on one RTX 4090, with shipped formulas", PLANNED, 3)
    yield Benchmark("LLaVA-1.5-7B: plan on 8 GPUs", (
        "plan", "llava-1.5-7b", "--sequence-length", "1024", "--gpu", "a100-80gb", "--gpus", "8"), 3)
    yield Benchmark("LLaVA-1.5-7B, ZeRO-2 on 8 GPUs: 1,000 steps of varied batches and several seeds, within 1 GB",
                    (CONFIG, "1000", "--gpu", "a100-80gb"), 60, COURSE)
    most = (*first, "--maximum-load")
    yield Benchmark("Qwen2.5-VL-7B, LoRA: largest batch and sequence", most)
    yield Benchmark("Qwen2.5-VL-7B, LoRA: largest batch and sequence again", most, before=(most,))
    for key, name in (("deepspeed", "DeepSpeed's estimate_zero2_model_states_mem_needs"),
                      ("accelerate", "accelerate estimate-memory"), ("mem_tracker", "PyTorch's MemTracker")):
        yield Benchmark(f"LLaVA-1.5-7B: {name}", (key,), code=PEER)
    yield from _series()


def _series() -> Iterator[Benchmark]:
    """Benchmarks of growing size."""
    def one(series: str, size: int, words: tuple[str, ...], **more: Any) -> Benchmark:
        return Benchmark(f"{series}: {size:,}", words, series=series, size=size, **more)

    document = models.find("qwen2.5-vl-7b").document
    for layers in (7, 14, 28, 56, 112):
        deeper = document | {"text_config": document["text_config"] | {"num_hidden_layers": layers}}
        yield one("layers of Qwen2.5-VL-7B, first prediction", layers, (
            TRACED, "predict", CONFIG, "--recipe", "full", "--image-size", "512", "--sequence-length", "512",
            "--gpu", "h100-80gb"), config=json.dumps(deeper))
    pictures = (TRACED, *_with(FIRST, "--sequence-length", "70000"), "--images-per-sample")
    for number in (2, 4, 8, 16, 32, 64):
        yield one("pictures of Qwen2.5-VL-7B, another number", number, (*pictures, str(number)),
                  before=((*pictures, "3"),))
    for ranks in (1, 8, 64, 512, 4096):
        yield one("ranks of LLaVA-1.5-7B, ZeRO-2", ranks, _with(LLAVA, "--data-parallel-size", str(ranks)))
    for steps in (125, 250, 500, 1000, 2000, 4000):
        yield one("steps of a whole training of LLaVA-1.5-7B", steps, (CONFIG, str(steps)), code=COURSE)
    for length in (2048, 8192, 32_768, 131_072):
        yield one("sequence of Llama-3.1-8B", length, (
            "predict", "llama-3.1-8b", "--recipe", "full", "--gpu", "h100-80gb", "--sequence-length",
            str(length)))


def _with(words: tuple[str, ...], option: str, value: str) -> tuple[str, ...]:
    """The words with another value of an option."""
    at = words.index(option)
    return (*words[: at + 1], value, *words[at + 2 :])


def measure(jobs: list[Benchmark], args: Namespace) -> list[Row]:
    """The latest row of each benchmark, those of the jobs measured now. Names on stderr what is refused."""
    for one in [] if args.table_only else results_file.bar(jobs, "Timing"):
        busy = os.getloadavg()[0]
        try:
            seconds = one.seconds()
        except InputError as error:  # the others are timed all the same
            print(error, file=sys.stderr)
            continue
        results_file.append(FILE, {
            "name": one.name, "seconds": round(seconds, 4), "busy": round(busy, 1), "target": one.target,
            "series": one.series, "size": one.size, "date": date.today().isoformat(), "cores": os.cpu_count(),
            **{package: metadata.version(package) for package in ("torch", "transformers")}})
    return list({row["name"]: row for row in results_file.lines(FILE)}.values())


HEAD = """# How long it takes

Wall time of whole commands, each in a new process, on {cores} cores: made by `python scripts/check.py speed` from
`evidence/speed.jsonl`, which has the date and software of each run (the latest is of {date}). A first prediction builds
and traces the model with an empty cache and without shipped formulas. Beside them are other people's estimators, each
in a new process too; what their numbers leave out is in the regression report (`peakcast report`). The last column is
the number of other processes that ran or waited for a core (the load average): times are those of an idle machine only
where it is below 1.

| what | seconds | at most | others |
| --- | ---: | ---: | ---: |
"""
GROWTH = """
## How it grows

The time of the command against its size, and the exponent of the power law that fits best (least squares of the
logarithms): 0 does not grow, 1 grows in proportion.

![time against size](speed.svg)

| what | from | to | seconds at the least | at the most | exponent |
| --- | ---: | ---: | ---: | ---: | ---: |
"""


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The page and its plot. Nothing is judged: times depend on the machine."""
    single = [row for row in rows if not row["series"]]
    lines = [f"| {row['name']} | {_seconds(row['seconds'])} | {row['target'] or ''} | "
             f"{row['busy']} |\n" for row in single]
    series: dict[str, list[Row]] = {}
    for row in rows:
        if row["series"]:
            series.setdefault(row["series"], []).append(row)
    points = {name: sorted((row["size"], row["seconds"]) for row in of) for name, of in series.items()}
    growth = [f"| {name} | {at[0][0]:,} | {at[-1][0]:,} | {_seconds(at[0][1])} | {_seconds(at[-1][1])} | "
              f"{growth_plot.exponent(at):.2f} |\n" for name, at in points.items()]
    head = HEAD.format(cores=max(row["cores"] for row in rows), date=max(row["date"] for row in rows))
    return Outcome({}, {PAGE: head + "".join(lines) + GROWTH + "".join(growth),
                        PLOT: growth_plot.drawn(points)}, tuple(line.rstrip() for line in lines + growth))


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"
