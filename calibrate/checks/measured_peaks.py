"""Measured peaks of a job, and table rows that compare them with the prediction."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrate.checks.results_file import bar
from calibrate.measure.measure import measure_only
from calibrate.records.record import MeasuredOn
from calibrate.regression import compact, files
from calibrate.regression.cases import Case
from calibrate.regression.compare import Comparison, compare

COUNTERS = ("requested", "allocated", "reserved")


def measured(job: Mapping[str, Any], device: MeasuredOn = MeasuredOn.EMULATED) -> dict[str, Any]:
    """Measures one job. Returns its peaks in bytes, start-up included."""
    workload, events = compact.workload_of(job)
    if device is MeasuredOn.DEVICE:
        workload = workload.replace(capacity_bytes=None)
    record = measure_only(workload, device=device, events=events)
    return {
        "measured_on": record.job.measured_on.value, "date": record.job.finished_at[:10], "rank": record.rank,
        "software": {name: record.job.software[name] for name in ("torch", "transformers", "deepspeed")},
        "seconds": round(record.job.seconds, 1), "moment": record.peak("requested_bytes").moment.value,
    } | {f"{name}_bytes": record.peak(f"{name}_bytes").bytes for name in COUNTERS}


def cases(*paths: Path) -> tuple[list[Case], int]:
    """The measured jobs of files, and the number of rows that cannot be read. Those are named on stderr."""
    cases, skipped = files.read(paths)
    for entry in skipped:
        print(f"{entry.source}: {entry.why}", file=sys.stderr)
    return cases, len(skipped)


def compared(cases: Sequence[Case], by: Callable[[Case], Any]) -> list[Comparison]:
    """Predicts each case. The result is sorted by ``by``."""
    return [compare(case) for case in bar(sorted(cases, key=by), "Predicting")]


def worst(comparisons: Sequence[Comparison], counters: Sequence[str] = COUNTERS) -> dict[str, float]:
    """The largest absolute error of each counter, as a fraction of the measured peak."""
    return {counter: max(absolute_error(comparison, counter) for comparison in comparisons) for counter in counters}


def absolute_error(comparison: Comparison, counter: str) -> float:
    """The size of a counter's error, as a fraction. The job must have a measured and a predicted peak."""
    error = comparison.error(counter)
    assert error is not None
    return abs(error)


def line_of(comparison: Comparison) -> str:
    """A Markdown row: group, job, and for each counter measured bytes and predicted less measured bytes."""
    cells = [comparison.case.group, comparison.case.name]
    for counter in COUNTERS:
        peak = comparison.peaks[counter]
        assert peak.measured_bytes is not None and peak.predicted_bytes is not None  # the jobs ran to their end
        cells += [f"{peak.measured_bytes:,}", f"{peak.predicted_bytes - peak.measured_bytes:+,}"]
    return f"| {' | '.join(cells)} |\n"


def name_of(job: Mapping[str, Any]) -> str:
    """The keys of an inference job in one line."""
    texts = {name: ", ".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, dict) else value
            for name, value in job.items() if name not in ("mode", "conversation")}
    return " · ".join(str(value) if name == "model" else f"{name} {value}" for name, value in texts.items())
