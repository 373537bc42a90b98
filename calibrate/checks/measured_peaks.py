"""Measured peaks of a compact job, and the table's row of one beside its prediction."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrate.checks.results_file import bar
from calibrate.measure.measure import measure
from calibrate.regression import compact, files
from calibrate.regression.cases import Case
from calibrate.regression.compare import Comparison, compare

COUNTERS = ("requested", "allocated", "reserved")


def measured(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measured peaks of one job; bytes. Start-up counts."""
    workload, events = compact.workload_of(job)
    record = measure(workload, events=events)
    return {
        "measured_on": record.job.measured_on.value, "date": record.job.finished_at[:10], "rank": record.rank,
        "software": {name: record.job.software[name] for name in ("torch", "transformers", "deepspeed")},
        "seconds": round(record.job.seconds, 1), "moment": record.peak("requested_bytes").moment.value,
    } | {f"{name}_bytes": record.peak(f"{name}_bytes").bytes for name in COUNTERS}


def cases(*paths: Path) -> tuple[list[Case], int]:
    """The measured jobs of files, and how many rows of theirs cannot be read."""
    found, skipped = files.read(paths)
    for one in skipped:
        print(f"{one.source}: {one.why}", file=sys.stderr)
    return found, len(skipped)


def compared(found: Sequence[Case], by: Callable[[Case], Any]) -> list[Comparison]:
    """Each with its prediction, in an order."""
    return [compare(case) for case in bar(sorted(found, key=by), "Predicting")]


def worst(found: Sequence[Comparison], counters: Sequence[str] = COUNTERS) -> dict[str, float]:
    """The largest error of each counter, as a fraction."""
    return {counter: max(abs(one.error(counter)) for one in found) for counter in counters}


def line_of(one: Comparison) -> str:
    """A row of a table."""
    cells = [one.case.group, one.case.name]
    for counter in COUNTERS:
        peak = one.peaks[counter]
        cells += [f"{peak.measured_bytes:,}", f"{peak.predicted_bytes - peak.measured_bytes:+,}"]
    return f"| {' | '.join(cells)} |\n"


def name_of(job: Mapping[str, Any]) -> str:
    """The keys of a job of inference in a line."""
    said = {name: ", ".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, dict) else value
            for name, value in job.items() if name not in ("mode", "conversation")}
    return " · ".join(str(value) if name == "model" else f"{name} {value}" for name, value in said.items())
