"""The page of the check ``device``: a GPU, its emulation and the predictions side by side, in Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.checks.results_file import lines
from calibrate.probes.libraries import Libraries
from calibrate.probes.operators import Answer, Operators, peak
from calibrate.records import record
from calibrate.regression import files
from calibrate.regression.cases import COUNTERS
from calibrate.regression.compare import Comparison, compare
from predictor.answer.predict import predict
from predictor.common.errors import InputError
from predictor.common.json_dataclasses import from_plain
from predictor.workload.workload import Workload

SIDES = {"device": "a real GPU", "emulated": "an emulated GPU"}
MIB = 1 << 20
HEAD = """# {gpu}: device, emulation, prediction

Made by `python scripts/check.py device --gpu {gpu}` from the files in `{directory}/`. {missing}
`device` bytes are what NVML shows of the whole GPU.
"""


def page_of(gpu: str, directory: Path) -> str:
    """The page from whatever of both sides is there.

    Raises:
        InputError: nothing is, or a file that is none of the campaign's.
    """
    there = [side for side in SIDES if any(directory.glob(f"{side}-*"))]
    if not there:
        raise InputError(f"{directory}: nothing was measured there: run it without --table-only")
    missing = " ".join(f"Nothing was measured on {SIDES[side]} yet." for side in SIDES if side not in there)
    parts = [HEAD.format(gpu=gpu, directory=directory.name, missing=missing)]
    for section in (jobs, again, limits, too_large, replays, library_uses, operator_calls):
        parts += section(directory)
    return "\n".join(parts) + "\n"


@dataclass(frozen=True)
class Peaks:
    """One counter of one job in bytes; None where it was not measured or nothing predicts it."""

    device: int | None
    emulated: int | None
    predicted: int | None

    @property
    def measured(self) -> int | None:
        """On the device, or else emulated."""
        return self.emulated if self.device is None else self.device

    def differences(self) -> dict[str, float]:
        """The pairs that are there: how much more the first has, relative to the second."""
        pairs = {"emulated of device": (self.emulated, self.device),
                 "predicted of device": (self.predicted, self.device),
                 "predicted of emulated": (self.predicted, self.emulated)}
        return {name: one / other - 1 for name, (one, other) in pairs.items() if one is not None and other}


PAIRS = tuple(Peaks(1, 1, 1).differences())


def jobs(directory: Path) -> Iterator[str]:
    """Peaks of each job on both sides and predicted, and their mean absolute differences."""
    sides = {side: _compared(directory / f"{side}-jobs.jsonl") for side in SIDES}
    names = list(dict.fromkeys(name for side in sides.values() for name in side))
    if not names:
        return
    found: dict[str, dict[str, list[float]]] = {}
    for counter in COUNTERS:
        of_jobs = {name: _peaks(counter, *(side.get(name) for side in sides.values())) for name in names}
        if all(peaks.measured is None for peaks in of_jobs.values()):
            continue
        yield f"## Peak of {counter} bytes\n"
        yield _header("job", "device, MiB", "emulated, MiB", "emulated less device, bytes", "predicted less device",
                      "predicted less emulated")
        for name, peaks in of_jobs.items():
            yield _row(name, _mib(peaks.device), _mib(peaks.emulated), _less(peaks.emulated, peaks.device),
                       _less(peaks.predicted, peaks.device), _less(peaks.predicted, peaks.emulated))
            for pair, error in peaks.differences().items():
                found.setdefault(counter, {}).setdefault(pair, []).append(abs(error))
        yield ""
    yield "## Mean absolute difference (worst), number of jobs\n"
    yield _header("peak of", *PAIRS)
    for counter, of_pair in found.items():
        yield _row(counter, *(f"{sum(one) / len(one):.4%} ({max(one):.4%}), {len(one)}"
                              if (one := of_pair.get(pair)) else "" for pair in PAIRS))
    yield ""


def _peaks(counter: str, device: Comparison | None, emulated: Comparison | None) -> Peaks:
    sides = [one and one.peaks[counter] for one in (device, emulated)]
    predicted = next((one.predicted_bytes for one in sides if one is not None), None)
    return Peaks(*(one and one.measured_bytes for one in sides), predicted)


def _compared(path: Path) -> dict[str, Comparison]:
    """By name; a job that ran out of memory, or that nobody predicts, is none."""
    if not path.is_file():
        return {}
    cases, _ = files.read([path])
    result = {}
    for case in cases:
        try:
            result[case.name] = compare(case)
        except InputError:
            continue
    return result


def again(directory: Path) -> Iterator[str]:
    """How far two measurements of the same job are apart."""
    for side, title in SIDES.items():
        once, twice = (_compared(directory / f"{side}-{name}.jsonl") for name in ("jobs", "again"))
        both = [name for name in twice if name in once]
        if both:
            yield f"## The same jobs twice, on {title}\n"
            yield _header("job", *(f"{counter}: difference in bytes" for counter in COUNTERS))
            for name in both:
                pairs = [(once[name].peaks[counter].measured_bytes, twice[name].peaks[counter].measured_bytes)
                         for counter in COUNTERS]
                yield _row(name, *("" if None in pair else f"{pair[1] - pair[0]:,}" for pair in pairs))
            yield ""


def limits(directory: Path) -> Iterator[str]:
    """Where jobs survived and died, beside the predicted limit."""
    for side, title in SIDES.items():
        rows = lines(directory / f"{side}-limits.jsonl")
        if rows:
            yield f"## The memory with which a job just survives, on {title}\n"
            yield _header("job", "predicted limit", "survived at", "died at")
            for row in rows:
                job, limit = row["job"], row["predicted_limit_bytes"]
                yield _row(f"{job['model']}, {job['per_device_train_batch_size']} x {job['sequence_length']}",
                           f"{limit:,}", *("not found" if row[key] is None else f"{row[key] - limit:+,}"
                                           for key in ("survived_bytes", "died_bytes")))
            yield ""


def too_large(directory: Path) -> Iterator[str]:
    """Where a job ran out of memory, beside where it was to."""
    found = {side: record.read(path) for side in SIDES if (path := directory / f"{side}-too-large.json").is_file()}
    if found:
        workload = Workload.from_mapping(dict(next(iter(found.values())).workload)).replace(profile=None)
        predicted = predict(workload)
        yield "## A job that does not fit\n"
        yield _header(f"{workload.model}, {workload.per_device_train_batch_size} x {workload.sequence_length}, one GPU",
                      "")
        yield _row("predicted", _failure(predicted.out_of_memory) if predicted.out_of_memory else predicted.verdict)
        for side, one in found.items():
            yield _row(f"on {SIDES[side]}", _failure(one.job.out_of_memory) if one.job.out_of_memory else "survived")
        yield ""


def _failure(where: Any) -> str:
    return f"out of memory in {where.moment.value} of step {where.step}"


def replays(directory: Path) -> Iterator[str]:
    """What the simulated allocator made of the recorded histories."""
    for side, title in SIDES.items():
        rows = lines(directory / f"{side}-replays.jsonl")
        if rows:
            yield f"## Histories recorded on {title}, replayed through the simulated allocator\n"
            yield _header("job", "events", "segments", "reserved peak: recorded", "simulated", "")
            for row in rows:
                if "error" in row:
                    yield _row(row["id"], "", "", "", "", row["error"])
                    continue
                said = "every decision agrees" if row["agrees"] else f"differs: {row['divergence']}"
                yield _row(row["id"], f"{row['events']:,}", f"{row['segments']:,}",
                           f"{row['recorded_peak_reserved_bytes']:,}", f"{row['peak_reserved_bytes']:,}", said)
            yield ""


def library_uses(directory: Path) -> Iterator[str]:
    """What the context and each library took, beside PyTorch's segments."""
    sides = {side: _document(directory / f"{side}-libraries.json", Libraries, "the libraries") for side in SIDES}
    found = {side: dict(one.growth()) for side, one in sides.items() if one}
    if found:
        yield "## Memory that is not PyTorch's: what each first use takes, in MiB\n"
        yield _header("first use of", *(SIDES[side] for side in found))
        for stage in next(iter(found.values())):
            yield _row(stage, *(_mib(growth.get(stage)) for growth in found.values()))
        yield ""


def operator_calls(directory: Path) -> Iterator[str]:
    """Which calls allocate otherwise than the tracer says."""
    for side, title in SIDES.items():
        found = _document(directory / f"{side}-operators.json", Operators, "the operators")
        if found:
            taken = [answer for answer in found.answers if answer.recorded is not None]
            others = [answer for answer in taken if answer.recorded != answer.predicted]
            yield f"## Single operators on {title}\n"
            refused = Counter(answer.refused for answer in found.answers if answer.recorded is None)
            yield (f"{len(taken) - len(others)} of {len(taken)} calls allocate and free what the tracer says, in that "
                   "order.\n")
            yield from (f"{count} more are refused by their library: {why}\n" for why, count in refused.items())
            yield from _differences(others)


def _differences(answers: Sequence[Answer]) -> Iterator[str]:
    if answers:
        yield _header("call", "predicted peak", "beyond it", "allocations that are not predicted")
        for answer in answers:
            call = " ".join(f"{key} {value}" for key, value in answer.call.items() if key != "kind" and value)
            extra = _beyond(answer.recorded or (), answer.predicted)
            yield _row(f"{answer.call['kind']}: {call}", f"{peak(answer.predicted):,}", f"{answer.beyond_bytes:+,}",
                       ", ".join(f"{size:,}" for size in extra))
        yield ""


def _beyond(recorded: Iterable[int], predicted: Iterable[int]) -> list[int]:
    """Sizes that were allocated oftener than predicted."""
    left = [size for size in predicted if size > 0]
    extra = []
    for size in (size for size in recorded if size > 0):
        left.remove(size) if size in left else extra.append(size)
    return extra


def _document(path: Path, kind: type, what: str) -> Any:
    return from_plain(kind, json.loads(path.read_text()), what) if path.is_file() else None


def _less(one: int | None, other: int | None) -> str:
    return "" if one is None or other is None else f"{one - other:+,}" if one != other else "0"


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / MIB:,.1f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _header(*titles: str) -> str:
    return f"{_row(*titles)}\n{_row(*['---'] + ['---:'] * (len(titles) - 1))}"
