"""Sections of the page of the check ``device`` about what only some campaigns have: courses, loops, the memory outside
PyTorch's allocator operation by operation, and the same jobs on other GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.checks import course, loops
from calibrate.checks.device_table import less, table_header, table_row
from calibrate.checks.measured_peaks import name_of
from calibrate.checks.results_file import lines
from calibrate.job.job import fraction
from predictor.allocator.simulate import Device
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.course.simulate import RankCourse

SIDE = "device"
HALF_MIB = 1 << 19
"""Growths below half a MiB are not listed."""


def courses(directory: Path) -> Iterator[str]:
    """Courses of varied batches: how many steps are as simulated with the GPU's profile."""
    rows = lines(directory / f"{SIDE}-courses.jsonl")
    if not rows:
        return
    total = _total_bytes(directory)
    yield "## Courses: another batch in every step\n"
    yield ("What PyTorch's counters said after each step, beside the course simulated with the GPU's profile: what "
           "tensors requested and blocks held at most in the step, and what blocks and segments held after it. The "
           "*limit* is what PyTorch could reserve (`set_per_process_memory_fraction`). A course that runs out of "
           "memory must do so in the simulated micro-step, asking for as many bytes.\n")
    yield table_header("course", "limit, MiB", "steps", "steps that differ", "worst: allocated, bytes",
                       "reserved, bytes", "out of memory")
    for row in rows:
        job = row["task"]["job"]
        limit = job.get("capacity_bytes")
        simulated = _simulated({**job, "gpu": directory.parent.name, "profile": SIDE}, total)
        ours = np.array([getattr(simulated.memory, name) for name in course.SAVED])
        theirs = np.array([row["columns"][name] for name in course.SAVED])
        steps = min(ours.shape[1], theirs.shape[1])
        apart = ours[:, :steps] - theirs[:, :steps]
        differing = int((apart != 0).any(axis=0).sum()) + abs(ours.shape[1] - theirs.shape[1])
        worst = [int(max(of_counter, key=abs)) for of_counter in apart[[course.SAVED.index(name) for name in (
            "peak_allocated_bytes", "reserved_bytes")]]]
        died, predicted = course.failures(row, simulated)
        yield table_row(course.text_of(job, "capacity_bytes"), f"{limit >> 20:,}" if limit else "",
                        str(theirs.shape[1] - 1), str(differing), *(less(one, 0) for one in worst),
                        died + ("" if died == predicted else f"; simulated: {predicted or 'none'}"))
    yield ""


def _simulated(keys: Mapping[str, Any], total_bytes: int) -> RankCourse:
    """A course in the part of a GPU's memory that the program left to PyTorch."""
    job = course.Job.of(keys)
    limit = job.workload.capacity_bytes
    share = fraction(limit, total_bytes) if limit else 1.0
    return job.simulated(Device(replace(job.settings, per_process_memory_fraction=share), total_bytes))


def loop_runs(directory: Path) -> Iterator[str]:
    """Reserved bytes in loops as people write them, beside the range that is predicted with the GPU's profile."""
    rows = lines(directory / f"{SIDE}-loops.jsonl")
    if not rows:
        return
    yield "## Loops as people write them\n"
    yield "The range is that of `peakcast predict --loops` with the GPU's profile.\n"
    yield table_header("job", "loop", "reserved, MiB", "range, MiB", "out of the range, bytes")
    for row in sorted(rows, key=lambda row: json.dumps(row["task"])):
        job, loop = row["task"]
        workload = loops.workload_of({**job, "gpu": directory.parent.name, "profile": SIDE})
        predicted = predict(workload, loops=True)
        low, high = predicted.peak_reserved_bytes_low, predicted.peak_reserved_bytes_high
        assert low is not None and high is not None  # --loops makes an interval
        reserved = row["reserved_bytes"]
        yield table_row(name_of(job), loop, f"{reserved / 2**20:,.0f}", f"{low / 2**20:,.0f} to {high / 2**20:,.0f}",
                        less(reserved, min(max(reserved, low), high)))
    yield ""


def outside(directory: Path) -> Iterator[str]:
    """What grew outside PyTorch's allocator, by the operation after which it was seen."""
    path = directory / f"{SIDE}-outside.json"
    if not path.is_file():
        return
    jobs = [job for job in json.loads(path.read_text())["jobs"] if "growths" in job]
    yield "## Memory outside PyTorch's allocator, operation by operation\n"
    yield ("Used bytes of the GPU less those that PyTorch reserved, read after every operation of three steps: each "
           "growth in MiB, and the operation after which it was seen. The first use of kernels and libraries loads "
           "them. Each thread has its own handle of cuBLAS, and the backward runs in a thread of its own. ZeRO-1 and "
           "ZeRO-2 make a CUDA stream (DeepSpeed 0.19.8, stage_1_and_2.py), and with the first PyTorch makes its whole "
           "pool of them (c10/cuda/CUDAStream.cpp). Each is listed where it was seen, so one of these causes may have "
           "come shortly before.\n")
    yield table_header("job", "growths", "in all, MiB")
    for job in jobs:
        grown = [one for one in job["growths"] if abs(one["grew_bytes"]) >= HALF_MIB]
        yield table_row(name_of(job["job"]), ", ".join(
            f"{one['grew_bytes'] / 2**20:,.0f} {one['operation'].removeprefix('aten.').removesuffix('.default')}"
            f" ({one['moment']})" for one in grown), f"{sum(one['grew_bytes'] for one in grown) / 2**20:,.0f}")
    yield ""


def other_gpus(directory: Path) -> Iterator[str]:
    """The jobs that ran on another real GPU, too: are their bytes equal?"""
    own = _measured(directory)
    rows = []
    for other in sorted(directory.parent.parent.glob(f"*/{directory.name}/{SIDE}-jobs.jsonl")):
        if other.parent != directory and own:
            theirs = _measured(other.parent)
            both = own.keys() & theirs.keys()
            equal = [sum(own[job][part] == theirs[job][part] for job in both) for part in (0, 1)]
            rows.append(table_row(other.parent.parent.name, str(len(both)), *map(str, equal)))
    if rows:
        yield "## The same jobs on another real GPU\n"
        yield table_header("other GPU", "jobs that ran on both", "with equal peaks at every moment",
                           "with equal use of the whole GPU")
        yield from (*rows, "")


def _measured(directory: Path) -> dict[str, tuple[Any, int]]:
    """The peaks of each moment and the whole GPU's used bytes of each job that ran to its end, by its keys."""
    rows = [row for row in lines(directory / f"{SIDE}-jobs.jsonl") if row.get("record")]
    jobs = {json.dumps({key: value for key, value in row["job"].items() if key != "gpu"}, sort_keys=True):
            row["record"]["job"] for row in rows}
    return {keys: (job["moments"], job["device_used_bytes"]) for keys, job in jobs.items() if not job["out_of_memory"]}


def _total_bytes(directory: Path) -> int:
    """The memory that the GPU of these measurements reported."""
    for row in lines(directory / f"{SIDE}-jobs.jsonl"):
        if row.get("record"):
            return int(row["record"]["job"]["device"]["capacity_bytes"])
    return gpus.find(directory.parent.name).capacity_bytes
