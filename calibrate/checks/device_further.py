"""Sections of the page of the check ``device`` about jobs that did not serve to find causes, and about the causes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from calibrate.checks import device_causes, measured_peaks
from calibrate.checks.device_causes import Explained
from calibrate.checks.device_table import PAIRS, SIDES, Peaks, less, mean, mib, table_header, table_row
from calibrate.checks.results_file import lines
from calibrate.regression import compact, files
from predictor.answer.predict import predict
from predictor.common.errors import InputError
from predictor.profile import profile as profiles
from predictor.workload.workload import Workload

COUNTERS = measured_peaks.COUNTERS
Rows = Mapping[str, Mapping[str, Any]]
"""Rows of measurements by task, as JSON."""

WHY = """## Why they differ

A job of which PyTorch requests the same bytes can allocate and reserve others. Each job with such a difference was
simulated with what a real GPU does otherwise, and the smallest set of causes that leaves the least is its cause:

- *convolutions*: cuDNN's convolution of patches takes a workspace, which is in the profile.
- *addresses*: of free blocks of one size PyTorch's allocator takes that with the lowest address. A real driver's
  addresses go down, {step} apart or more, the emulated GPU's go up. Predictions with the profile do as the real one.
- *range*: from the first step on the driver has a further range of 416 MiB above them, in which segments go up. It is
  simulated here only: what gives it back to the driver is not recorded, and it was seen on one GPU.

*left* is what remains between simulation and measurement: with the named causes, the best of {sets} sets, and with all
three, which nothing chose. A remainder has no cause that the records show: where a library's own memory lies between
the segments is not recorded. Addresses and range were read in the histories of the 25 jobs, so those do not judge them.
The further jobs and the programs have no history and judge the addresses, but the range was given its form with the
further jobs in sight.
"""


def further(directory: Path) -> Iterator[str]:
    """Peaks of jobs of other models and recipes, and their mean absolute differences."""
    device, emulated = _sides(directory, "further")
    tasks = list(dict.fromkeys((*device, *emulated)))
    if not tasks:
        return
    yield "## Other models and recipes\n"
    yield "Predicted with the profile that `predict` chooses.\n"
    yield table_header("job", *(title for counter in COUNTERS for title in (
        f"{counter}: device, MiB", "emulated less device, bytes", "predicted less device")))
    errors: dict[str, dict[str, list[float]]] = {counter: {pair: [] for pair in PAIRS} for counter in COUNTERS}
    for task in tasks:
        of_task = json.loads(task)
        predicted, cells = _predicted(of_task["job"]), []
        for counter in COUNTERS:
            on_device, on_emulated = (side.get(task, {}).get(f"{counter}_bytes") for side in (device, emulated))
            peaks = Peaks(on_device, on_emulated, predicted.get(counter))
            cells += [mib(peaks.device), less(peaks.emulated, peaks.device), less(peaks.predicted, peaks.device)]
            for pair, error in peaks.differences().items():
                errors[counter][pair].append(abs(error))
        yield table_row(name_of(of_task), *cells)
    yield ""
    yield table_header("mean (worst), number of jobs", *PAIRS)
    for counter, of_pair in errors.items():
        yield table_row(counter, *(f"{mean(of_pair[pair])}, {len(of_pair[pair])}" if of_pair[pair] else ""
                                   for pair in PAIRS))
    yield ""


def programs(directory: Path) -> Iterator[str]:
    """Peaks of programs, also with what a real GPU does otherwise."""
    device, emulated = _sides(directory, "programs")
    explained = _rows(directory / "emulated-explained.jsonl")
    if not device and not emulated:
        return
    yield "## Programs as users write them\n"
    yield ("*as on a device*: emulated once more, with addresses that go down and the workspaces of convolutions of "
           "patches.\n")
    yield table_header("program", *(title for counter in COUNTERS for title in (
        f"{counter}: device, MiB", "emulated less device, bytes", "emulated as on a device")))
    for task in dict.fromkeys((*device, *emulated)):
        cells = []
        for counter in COUNTERS:
            known, plain, changed = (side.get(task, {}).get(f"{counter}_bytes") for side in
                                     (device, emulated, explained))
            cells += [mib(known), less(plain, known), less(changed, known)]
        yield table_row(name_of(json.loads(task)), *cells)
    yield ""


def learned(directory: Path) -> Iterator[str]:
    """Learned formulas beside the runs of their programs."""
    formulas = _rows(directory / "emulated-learned.jsonl")
    device, emulated = _sides(directory, "programs")
    if not formulas:
        return
    yield "## Learned formulas\n"
    yield ("`peakcast learn` on the emulated GPU, at other shapes (batches of 2 and 4, 128 to 512 tokens); the formula "
           "is asked for the shape that ran.\n")
    yield table_header("program", *(title for counter in COUNTERS for title in (
        f"{counter}: device, MiB", "learned less device, bytes", "learned less emulated")))
    for task, formula in formulas.items():
        cells = []
        for counter in COUNTERS:
            known, plain = (side.get(task, {}).get(f"{counter}_bytes") for side in (device, emulated))
            answer = formula[f"{counter}_bytes"]
            cells += [mib(known), less(answer, known), less(answer, plain)]
        yield table_row(name_of(json.loads(task)), *cells)
    yield ""


def why(directory: Path) -> Iterator[str]:
    """The cause of each difference in allocated or reserved bytes."""
    path = directory.parent / "profile-device.json"
    differing = list(_differing(directory))
    if not path.is_file() or not differing:
        return
    profile = profiles.read(path)
    yield WHY.format(step=f"{profile.allocator.address_step_bytes >> 20} MiB", sets=len(device_causes.SETS))
    yield table_header("job", "emulated less device: allocated", "reserved", "cause", "left: allocated", "reserved",
                       "left with all: allocated", "reserved")
    for name, workload, rank, device, emulated in differing:
        found: Explained = device_causes.explain(workload, rank, device, profile)
        difference = emulated.less(device)
        yield table_row(name, less(difference.allocated, 0), less(difference.reserved, 0), ", ".join(found.causes),
                        *(less(size, 0) for left in (found.left, found.left_with_all)
                          for size in (left.allocated, left.reserved)))
    yield ""


def _differing(directory: Path) -> Iterator[tuple[str, Workload, int | None, device_causes.Peaks, device_causes.Peaks]]:
    """Name, workload, rank and peaks of jobs whose allocated or reserved peaks differ on the two sides."""
    cases = [{case.name: case for case in files.read([path])[0] if case.survived} if path.is_file() else {}
             for path in (directory / f"{side}-jobs.jsonl" for side in SIDES)]
    for name, case in sorted(cases[0].items()):
        if name in cases[1]:
            device, emulated = (_known(side[name].peaks) for side in cases)
            if device != emulated:
                yield name, case.workload, None, device, emulated
    sides = _sides(directory, "further")
    for task, row in sides[0].items():
        if task in sides[1]:
            device, emulated = (device_causes.peaks_of(side[task]) for side in sides)
            if device != emulated:
                of_task = json.loads(task)
                yield name_of(of_task), _workload(of_task["job"]), row["rank"], device, emulated


def _known(peaks: Mapping[str, int | None]) -> device_causes.Peaks:
    allocated, reserved = peaks["allocated"], peaks["reserved"]
    assert allocated is not None and reserved is not None  # the job survived
    return device_causes.Peaks(allocated, reserved)


def _workload(job: Mapping[str, Any]) -> Workload:
    return compact.workload_of({**job, "gpu": "h200"})[0]


@cache
def _answer(job: str) -> Mapping[str, int]:
    answer = predict(_workload(json.loads(job)).replace(profile=None))
    return {counter: getattr(answer, f"peak_{counter}_bytes") for counter in COUNTERS}


def _predicted(job: Mapping[str, Any]) -> Mapping[str, int]:
    """The predicted peaks; none for a job that is not predicted."""
    with suppress(InputError):
        return _answer(json.dumps(job))
    return {}


def name_of(task: Mapping[str, Any] | Sequence[str]) -> str:
    """A job's group, model and shape, or a program with its arguments."""
    if not isinstance(task, Mapping):
        return " ".join(task)
    job = task["job"]
    batch = job.get("per_device_train_batch_size") or job.get("per_device_eval_batch_size")
    return f"{task['group']}: {job['model']}, {batch} x {job['sequence_length']}"


def _sides(directory: Path, name: str) -> tuple[Rows, Rows]:
    device, emulated = (_rows(directory / f"{side}-{name}.jsonl") for side in SIDES)
    return device, emulated


def _rows(path: Path) -> Rows:
    """The rows with measured peaks, by task."""
    rows: Iterable[Mapping[str, Any]] = lines(path)
    return {json.dumps(row["task"]): row for row in rows if "requested_bytes" in row}
