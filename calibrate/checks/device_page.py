"""Writes the Markdown page of the check ``device``: a real GPU, its emulation and the predictions side by side."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from calibrate.checks.device_causes import room_of
from calibrate.checks.device_further import further, learned, programs, why
from calibrate.checks.device_steps import courses, loop_runs, other_gpus, outside
from calibrate.checks.device_table import PAIRS, SIDES, Peaks, less, mean, mib, table_header, table_row
from calibrate.checks.results_file import lines
from calibrate.fit.jobs import FIT
from calibrate.probes.libraries import Libraries
from calibrate.probes.operators import OperatorMeasurement, Operators, peak, predicted_again
from calibrate.records import record
from calibrate.regression import files
from calibrate.regression.cases import COUNTERS
from calibrate.regression.compare import Comparison, compare
from predictor.answer.failure import with_limit
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.common.json_dataclasses import from_plain
from predictor.workload.workload import Workload

HEAD = """# {gpu}: device, emulation, prediction

Made by `python scripts/check.py device --gpu {gpu}` from the files in `{directory}/`. {missing}
`device` bytes are the used memory of the whole GPU (cudaMemGetInfo).
"""


def page_of(gpu: str, directory: Path) -> str:
    """The page, made from the measurements of either side that exist.

    Raises:
        InputError: there are no measurements, or a file is not one of this check's.
    """
    present = [side for side in SIDES if any(directory.glob(f"{side}-*"))]
    if not present:
        raise InputError(f"{directory}: nothing was measured there: run it without --table-only")
    missing = " ".join(f"Nothing was measured on {SIDES[side]} yet." for side in SIDES if side not in present)
    parts = [HEAD.format(gpu=gpu, directory="/".join(directory.parts[-2:]), missing=missing)]
    for section in (jobs, profiled, other_gpus, courses, loop_runs, further, programs, learned, why, again, limits,
                    too_large, replays, outside, library_uses):
        parts += section(directory)
    parts += operator_calls(directory, gpus.find(gpu))
    return "\n".join(parts) + "\n"


def jobs(directory: Path) -> Iterator[str]:
    """Real, emulated and predicted peaks of each job, and their mean absolute differences."""
    sides = {side: _compared(directory / f"{side}-jobs.jsonl") for side in SIDES}
    names = list(dict.fromkeys(name for side in sides.values() for name in side))
    if not names:
        return
    errors_of: dict[str, dict[str, list[float]]] = {}
    for counter in COUNTERS:
        of_jobs = {name: _peaks(counter, *(side.get(name) for side in sides.values())) for name in names}
        if all(peaks.measured is None for peaks in of_jobs.values()):
            continue
        yield f"## Peak of {counter} bytes\n"
        yield table_header("job", "device, MiB", "emulated, MiB", "emulated less device, bytes",
                           "predicted less device", "predicted less emulated")
        for name, peaks in of_jobs.items():
            yield table_row(name, mib(peaks.device), mib(peaks.emulated), less(peaks.emulated, peaks.device),
                            less(peaks.predicted, peaks.device), less(peaks.predicted, peaks.emulated))
            for pair, error in peaks.differences().items():
                errors_of.setdefault(counter, {}).setdefault(pair, []).append(abs(error))
        yield ""
    yield "## Mean absolute difference (worst), number of jobs\n"
    yield table_header("peak of", *PAIRS)
    for counter, of_pair in errors_of.items():
        yield table_row(counter, *(f"{mean(errors)}, {len(errors)}" if (errors := of_pair.get(pair)) else ""
                                   for pair in PAIRS))
    yield ""


def profiled(directory: Path) -> Iterator[str]:
    """Peaks of the jobs that the profile beside the directory was not fitted to, predicted with it."""
    profile, path = directory.parent / "profile-device.json", directory / "device-jobs.jsonl"
    if not profile.is_file():
        return
    roles = [row["role"] for row in lines(path)]
    held_out = _compared(path, str(profile), [line for line, role in enumerate(roles, 1) if role != FIT])
    yield "## Predicted with the profile, for jobs that it was not fitted to\n"
    titles = [(f"{counter}: device, MiB", "predicted less device, bytes") for counter in COUNTERS]
    yield table_header("job", *(title for pair in titles for title in pair))
    errors_of: dict[str, list[float]] = {counter: [] for counter in COUNTERS}
    for name, comparison in held_out.items():
        peaks = [comparison.peaks[counter] for counter in COUNTERS]
        yield table_row(name, *(cell for each in peaks for cell in (
            mib(each.measured_bytes), less(each.predicted_bytes, each.measured_bytes))))
        for errors, each in zip(errors_of.values(), peaks):
            errors.append(abs(each.error or 0))
    yield table_row("mean (worst)", *(cell for errors in errors_of.values() for cell in ("", mean(errors))))
    yield ""


def _peaks(counter: str, device: Comparison | None, emulated: Comparison | None) -> Peaks:
    on_device, on_emulated = (comparison.peaks[counter] if comparison else None for comparison in (device, emulated))
    predicted = next((peak.predicted_bytes for peak in (on_device, on_emulated) if peak is not None), None)
    return Peaks(on_device.measured_bytes if on_device else None, on_emulated.measured_bytes if on_emulated else None,
                 predicted)


def _compared(path: Path, profile: str = "none", chosen: Collection[int] | None = None) -> dict[str, Comparison]:
    """Job name -> comparison, sorted by name. Leaves out jobs that ran out of memory or cannot be predicted.

    Args:
        profile: path of the profile to predict with.
        chosen: numbers of the lines to compare; None for all.
    """
    if not path.is_file():
        return {}
    result = {}
    for case in files.read([path])[0]:
        if chosen is None or case.line in chosen:
            with suppress(InputError):
                result[case.name] = compare(case, profile)
    return dict(sorted(result.items()))


def again(directory: Path) -> Iterator[str]:
    """Differences between two measurements of the same job."""
    for side, title in SIDES.items():
        once, twice = (_compared(directory / f"{side}-{name}.jsonl") for name in ("jobs", "again"))
        both = [name for name in twice if name in once]
        if both:
            yield f"## The same jobs twice, on {title}\n"
            yield table_header("job", *(f"{counter}: difference in bytes" for counter in COUNTERS))
            for name in both:
                pairs = [(once[name].peaks[counter].measured_bytes, twice[name].peaks[counter].measured_bytes)
                         for counter in COUNTERS]
                yield table_row(name, *("" if first is None or second is None else f"{second - first:,}"
                                   for first, second in pairs))
            yield ""


def limits(directory: Path) -> Iterator[str]:
    """Capacities at which jobs survived and died, beside the predicted limit."""
    for side, title in SIDES.items():
        rows = lines(directory / f"{side}-limits.jsonl")
        if rows:
            yield f"## The memory with which a job just survives, on {title}\n"
            yield table_header("job", "predicted limit", "survived at", "died at")
            for row in rows:
                job, limit = row["job"], row["predicted_limit_bytes"]
                yield table_row(f"{job['model']}, {job['per_device_train_batch_size']} x {job['sequence_length']}",
                           f"{limit:,}", *("not found" if row[key] is None else f"{row[key] - limit:+,}"
                                           for key in ("survived_bytes", "died_bytes")))
            yield ""


def too_large(directory: Path) -> Iterator[str]:
    """The moment in which a job ran out of memory, measured and predicted with the bytes that PyTorch could have."""
    records = {side: record.read(path) for side in SIDES if (path := directory / f"{side}-too-large.json").is_file()}
    if records:
        measured = next(iter(records.values()))
        workload = Workload.from_mapping(dict(measured.workload)).replace(capacity_bytes=None)
        room, capacity = room_of(measured), measured.job.device.capacity_bytes
        yield "## A job that does not fit\n"
        shape = f"{workload.per_device_train_batch_size} x {workload.sequence_length}"
        yield table_header(f"{workload.model}, {shape}, one GPU", "", "bytes that PyTorch could have")
        failure = with_limit(workload, room, capacity).failure
        yield table_row("predicted", _failure(failure) if failure else "survives", f"{room:,}")
        for side, one in records.items():
            died = one.job.out_of_memory
            yield table_row(f"on {SIDES[side]}", _failure(died) if died else "survived", f"{room_of(one):,}")
        yield ""
        whole = predict(workload.replace(profile=None)).out_of_memory
        if whole and failure and (whole.moment, whole.step) != (failure.moment, failure.step):
            yield (f"`predict` itself names the failure at the best end of its interval: {_failure(whole)}.\n")


def _failure(where: Any) -> str:
    return f"out of memory in {where.moment.value} of step {where.step}"


def replays(directory: Path) -> Iterator[str]:
    """Recorded memory histories replayed through the simulated allocator: do its decisions agree?"""
    for side, title in SIDES.items():
        rows = lines(directory / f"{side}-replays.jsonl")
        if rows:
            yield f"## Histories recorded on {title}, replayed through the simulated allocator\n"
            yield table_header("job", "events", "segments", "reserved peak: recorded", "simulated", "")
            for row in rows:
                if "error" in row:
                    yield table_row(row["id"], "", "", "", "", row["error"])
                    continue
                agreement = "every decision agrees" if row["agrees"] else f"differs: {row['divergence']}"
                yield table_row(row["id"], f"{row['events']:,}", f"{row['segments']:,}",
                           f"{row['recorded_peak_reserved_bytes']:,}", f"{row['peak_reserved_bytes']:,}", agreement)
            yield ""


def library_uses(directory: Path) -> Iterator[str]:
    """Memory of the CUDA context and of each library, which PyTorch's allocator does not hold."""
    sides = {side: _document(directory / f"{side}-libraries.json", Libraries, "the libraries") for side in SIDES}
    growths = {side: dict(uses.growth()) for side, uses in sides.items() if uses}
    if growths:
        yield "## Memory that is not PyTorch's: what each first use takes, in MiB\n"
        yield table_header("first use of", *(SIDES[side] for side in growths))
        for stage in next(iter(growths.values())):
            yield table_row(stage, *(mib(growth.get(stage)) for growth in growths.values()))
        yield ""


def operator_calls(directory: Path, gpu: Gpu) -> Iterator[str]:
    """Operator calls whose allocations differ from the tracer's."""
    for side, title in SIDES.items():
        saved = _document(directory / f"{side}-operators.json", Operators, "the operators")
        if saved:
            measured = predicted_again(saved, gpu)
            ran = [answer for answer in measured.answers if answer.recorded is not None]
            differing = [answer for answer in ran if answer.recorded != answer.predicted]
            yield f"## Single operators on {title}\n"
            refused = Counter(answer.refused for answer in measured.answers if answer.recorded is None)
            yield (f"{len(ran) - len(differing)} of {len(ran)} calls allocate and free what the tracer says, in that "
                   "order.\n")
            yield from (f"{count} more are refused by their library: {why}\n" for why, count in refused.items())
            yield from _differences(differing)


def _differences(answers: Sequence[OperatorMeasurement]) -> Iterator[str]:
    if answers:
        yield table_header("call", "predicted peak", "beyond it", "allocations that are not predicted")
        for answer in answers:
            call = " ".join(f"{key} {value}" for key, value in answer.call.items() if key != "kind" and value)
            extra = _beyond(answer.recorded or (), answer.predicted)
            yield table_row(f"{answer.call['kind']}: {call}", f"{peak(answer.predicted):,}",
                            f"{answer.beyond_bytes:+,}", ", ".join(f"{size:,}" for size in extra))
        yield ""


def _beyond(recorded: Iterable[int], predicted: Iterable[int]) -> list[int]:
    """Sizes in bytes that were allocated more often than predicted."""
    left = [size for size in predicted if size > 0]
    extra = []
    for size in (size for size in recorded if size > 0):
        left.remove(size) if size in left else extra.append(size)
    return extra


def _document(path: Path, class_: type, what: str) -> Any:
    return from_plain(class_, json.loads(path.read_text()), what) if path.is_file() else None
