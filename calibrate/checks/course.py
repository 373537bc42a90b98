"""Run courses on the emulated H100, read the counters after every step, and compare the simulated courses.

    pip install -e '.[test]'
    python scripts/check.py course                # measures missing jobs, then the table: an hour
    python scripts/check.py course --table-only   # simulates the saved jobs again: traces formulas

No GPU is needed. The jobs are in calibrate/checks/course.json: a workload, with ``samples`` (how lengths and pictures
are drawn), ``steps``, and what else a course has. Those with ``capacity_bytes`` must run out of memory at the predicted
step with the predicted batch, or survive if they have a cure. Measurements go to profiles/evidence/course.jsonl, one
line per job. Jobs in that file are not run again. The table is profiles/pages/course.md.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np

from calibrate.campaign import design
from calibrate.checks import results_file
from calibrate.checks.directories import EVIDENCE, PAGES, model_of
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Row
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.measure.measure import ALLOCATOR_VARIABLES
from calibrate.probes import device_query
from calibrate.records.record import MeasuredOn
from predictor.allocator import AllocatorSettings
from predictor.allocator.simulate import Device
from predictor.common import gpus
from predictor.course.evaluation import Evaluating, EvaluationRuns
from predictor.course.runs import BatchRuns
from predictor.course.sampler import Sampler, Sampling, Step
from predictor.course.simulate import COLUMNS, RankCourse, simulate
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload

FILE, PAGE = EVIDENCE / "course.jsonl", PAGES / "course.md"
PROGRAM = "calibrate.checks.programs.course"
EMULATED = MeasuringDevice(gpus.find("h100-80gb").name, MeasuredOn.EMULATED)
COMPARED = COLUMNS[:7]
"""The columns of the program's rows."""
SAVED = ("peak_requested_bytes", "peak_allocated_bytes", "allocated_bytes", "reserved_bytes")
"""The columns that the results file keeps."""
OWN = ("samples", "steps", "sampling", "empty_cache_steps", "conf", "held", "evaluation")
"""Keys of a job that are not the workload's."""
PICTURES = ((280, 280), (336, 504), (448, 448), (672, 448), (784, 588), (980, 700), (1288, 966))
TOKENS_OF_LLAVA = 576
"""Tokens of an image of LLaVA-1.5."""
MERGED_SIDE = 28
"""Pixels of a side that Qwen2.5-VL makes one token of."""
HEAD = """# Courses, measured and simulated

Jobs, most of few layers, with another batch in every step, on the emulated H100: what PyTorch's own counters said after
each step, beside the simulated course (`peakcast predict --samples FILE --steps N`). Compared are what tensors
requested and blocks held at most in the step, and what blocks and segments held after it, in bytes. A job with little
memory must run out of it in the simulated micro-step, asking for as many bytes. Made by `python scripts/check.py
course` on {date} from `evidence/course.jsonl`, which has the software of each measurement.

| line | job | samples | date | rank | steps | steps that differ | first difference | out of memory | reserved at end |
| --- | --- | --- | --- | ---: | ---: | ---: | --- | --- | ---: |
"""


@dataclass(frozen=True, eq=False)
class Job:
    """A job of the list, with its samples and its drawn steps."""

    keys: Mapping[str, Any]
    workload: Workload
    runs: BatchRuns
    steps: list[Step]
    rank: int
    evaluation: EvaluationRuns | None = None

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> Job:
        """The job of an entry of the list."""
        own = {name: value for name, value in keys.items() if name not in OWN}
        workload = design.workload({"gpu": "h100-80gb", "profile": "emulated", **own, "model": model_of(keys["model"])})
        samples = _samples(workload.sequence_length or 0, **keys["samples"])
        workload = workload.fill(images_per_sample=int(samples.images.max() > 0))
        sampling = Sampling(**keys.get("sampling", {}))
        sampler = Sampler.of(samples.tokens, workload, sampling)
        evaluation = None
        if "evaluation" in keys:
            evaluated = dict(keys["evaluation"])
            every, size = evaluated.pop("every"), evaluated.pop("size")
            evaluation = EvaluationRuns(workload, Evaluating(every, _samples(
                workload.sequence_length or 0, **keys["samples"] | evaluated), size), sampling.packing)
        return cls(keys, workload, BatchRuns(workload, samples), sampler.steps(keys["steps"]),
                   0 if workload.rank == "worst" else int(workload.rank), evaluation)

    @property
    def conf(self) -> str:
        """``PYTORCH_CUDA_ALLOC_CONF``."""
        return str(self.keys.get("conf", ""))

    @property
    def settings(self) -> AllocatorSettings:
        """The allocator's settings, with the order of the driver's addresses that the GPU's profile has."""
        allocator = self.runs.job(self.runs.batch(self.steps[0].batches[0][0])).setup.allocator
        return replace(AllocatorSettings.parse(self.conf), address_step_bytes=allocator.address_step_bytes)

    def simulated(self, device: Device | None = None) -> RankCourse:
        """The simulated course, on the job's GPU or on this one."""
        return simulate(self.runs, self.steps, self.rank, device or Device(self.settings, self.workload.capacity),
                        empty_cache_steps=self.keys.get("empty_cache_steps"), held=self.keys.get("held", 1),
                        evaluation=self.evaluation)

    def measured(self, where: MeasuringDevice = EMULATED) -> dict[str, Any]:
        """The course on a GPU: the program's answer."""
        place = self.runs.place(self.rank)
        batches = [[of_ranks[place % len(of_ranks)] for of_ranks in step.batches] for step in self.steps]
        task = {"workload": self.workload.resolved(), "rank": self.rank, "limit_bytes": self.workload.capacity_bytes,
                "empty_cache_steps": self.keys.get("empty_cache_steps"), "held": self.keys.get("held", 1),
                "steps": [[_plain_batch(self.runs, indices) for indices in of_step] for of_step in batches]}
        if self.evaluation:
            task["evaluation"] = {"every": self.evaluation.every,
                                  "batches": [_plain_batch(self.evaluation, indices)
                                              for indices in self.evaluation.of_rank(self.rank)]}
        return device_query.run_task(PROGRAM, where, task, capacity_bytes=self.workload.capacity_bytes,
                                     variables=dict.fromkeys(ALLOCATOR_VARIABLES, self.conf) if self.conf else {})


def _plain_batch(runs: BatchRuns, indices: np.ndarray) -> dict[str, Any]:
    """A batch of these samples as the program reads it."""
    batch = runs.batch(indices)
    packed = batch.padding == "packed"
    return {"padding": batch.padding, "pictures": batch.pictures, "images": batch.shape.images,
            "each": runs.samples.images[indices].tolist(),
            "tokens": runs.samples.tokens[indices].tolist() if packed else [batch.row_tokens] * len(indices)}


def drawn_samples(longest: int, *, count: int, seed: int, median: float, images: int = 0, shortest: int = 16,
                  varied: str = "") -> Samples:
    """Samples whose lengths follow a log-normal distribution, as those of instruction data do.

    Args:
        longest: tokens of the longest sample; longer ones are truncated.
        median: tokens of text of the median sample.
        images: images of each sample.
        shortest: tokens of the shortest sample.
        varied: ``numbers``: each sample has 1 to ``images`` images, of :data:`TOKENS_OF_LLAVA` tokens. ``sizes``:
            images have sizes of :data:`PICTURES`, whose tokens are added to the text's.
    """
    numbers = np.random.default_rng(seed)
    tokens = np.clip(numbers.lognormal(np.log(median), 0.4, count).astype(np.int64), shortest, longest)
    if varied == "numbers":
        counts = numbers.integers(1, images + 1, count)
        return Samples(np.maximum(tokens, counts * TOKENS_OF_LLAVA + shortest), counts)
    if varied != "sizes":
        return Samples(tokens, np.full(count, images))
    chosen = [tuple(PICTURES[index] for index in row) for row in numbers.integers(len(PICTURES), size=(count, images))]
    filled = [sum(height * width // MERGED_SIDE**2 + 1 for height, width in sizes) for sizes in chosen]
    return Samples(np.minimum(tokens + filled, longest), np.full(count, images), tuple(chosen))


def _samples(longest: int, *, pictured: float = 1, **keys: Any) -> Samples:
    """Samples as :func:`drawn_samples` makes them, of which so large a share keeps its images."""
    samples = drawn_samples(longest, **keys)
    keep = np.random.default_rng(keys["seed"] + 1_000).random(len(samples)) < pictured
    pictures = tuple(sizes if kept else () for sizes, kept in zip(samples.pictures, keep))
    return replace(samples, images=samples.images * keep, pictures=pictures)


def jobs(args: Namespace) -> list[Row]:
    """The jobs of the JSON list beside this module."""
    return results_file.listed(__file__)


def _row(entry: Mapping[str, Any]) -> Row:
    """A measured job."""
    job = Job.of(entry["job"])
    job.runs.check(job.runs.batch(indices) for step in job.steps for batches in step.batches for indices in batches)
    return {**entry, "date": date.today().isoformat(), **measured_row(job, EMULATED)}


def measured_row(job: Job, where: MeasuringDevice) -> Row:
    """What is saved of a measured course, beside its job."""
    answer = job.measured(where)
    columns = np.array(answer["rows"]).T
    return {"software": answer["software"], "out_of_memory": answer["out_of_memory"],
            "columns": {name: columns[COMPARED.index(name)].tolist() for name in SAVED}}


measure = results_file.Kept(FILE, _row)


@dataclass(frozen=True)
class Comparison:
    """A measured course beside the simulated one.

    Attributes:
        differing: number of steps, start-up included, in which a column differs.
        first: the first of them in words; empty if there is none.
        failure, measured_failure: micro-step and bytes of the out-of-memory error in words; empty if there is none.
        failing: the batch of the simulated error in words.
    """

    row: Row
    rank: int
    differing: int
    first: str
    failure: str
    measured_failure: str
    failing: str


def compared(row: Row) -> Comparison:
    """Simulates a measured job again, and compares."""
    job = Job.of(row["job"])
    course = job.simulated()
    ours = np.array([getattr(course.memory, name) for name in SAVED])
    theirs = np.array([row["columns"][name] for name in SAVED])
    count = min(ours.shape[1], theirs.shape[1])
    wrong = ours[:, :count] != theirs[:, :count]
    steps = np.flatnonzero(wrong.any(axis=0))
    first = ""
    if len(steps):
        name = SAVED[int(np.argmax(wrong[:, steps[0]]))]
        by = int(ours[SAVED.index(name), steps[0]] - theirs[SAVED.index(name), steps[0]])
        first = f"step {steps[0]}: {name} {by:+,}"
    measured, simulated = failures(row, course)
    found = course.failure
    failing = f", batch of {len(found.samples)} × {found.batch.row_tokens:,} tokens" if found and found.batch else ""
    return Comparison(row, job.rank, len(steps) + abs(ours.shape[1] - theirs.shape[1]), first, simulated, measured,
                      failing)


def failures(row: Row, course: RankCourse) -> tuple[str, str]:
    """Where a course ran out of memory, in words: measured and simulated. Empty if it did not."""
    measured, found = row["out_of_memory"], course.failure
    return (_failed(measured["step"], measured["micro_step"], measured["tried_to_allocate_bytes"]) if measured else "",
            _failed(found.step, found.micro_step, found.shortage.tried_to_allocate_bytes) if found else "")


def _failed(step: int, micro_step: int, size_bytes: int) -> str:
    return f"step {step}, micro-step {micro_step}, {size_bytes:,} bytes"


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The page of all measured courses beside the simulated ones."""
    comparisons = [compared(row) for row in rows]
    lines = [HEAD.format(date=date.today().isoformat())]
    for one in comparisons:
        steps = len(one.row["columns"][SAVED[0]]) - 1
        died = one.measured_failure + (one.failing if one.failure == one.measured_failure else
                                       f"; simulated: {one.failure or 'none'}{one.failing}")
        lines.append(f"| {one.row['group']} | {text_of(one.row['job'])} | {_plain(one.row['job']['samples'])} | "
                     f"{one.row['date']} | {one.rank} | {steps} | {one.differing} | {one.first} | {died} | "
                     f"{one.row['columns']['reserved_bytes'][-1]:,} |\n")
    return Outcome({"steps that differ": sum(one.differing for one in comparisons),
                    "errors at another place": sum(one.failure != one.measured_failure for one in comparisons)},
                   {PAGE: "".join(lines)})


def text_of(keys: Mapping[str, Any], *left_out: str) -> str:
    """A job's keys in one line, without those that the table has elsewhere."""
    said = (f"{name} {_plain(value)}" for name, value in keys.items()
            if name not in ("model", "samples", "steps", "rank", *left_out))
    return ", ".join([keys["model"], *said])


def _plain(value: Any) -> str:
    return json.dumps(value).replace('"', "") if isinstance(value, (dict, list)) else str(value).lower()
