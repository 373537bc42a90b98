"""Prints a calibration: the plan before it, the progress during it, the result after it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from calibrate.campaign.design import ROLES, Job, seconds
from calibrate.campaign.rows import Row
from predictor.common.json_dataclasses import to_plain
from predictor.common.safe_text import printable
from predictor.common.streams import say
from predictor.profile.calibration import Profile
from predictor.report.layout import table, wrapped
from predictor.report.profile import intervals
from predictor.report.profile import report as report_profile

if TYPE_CHECKING:
    from rich import progress
    from rich.console import Console
    from rich.table import Table

    from calibrate.fit import Coverage, GroupErrors

PURPOSE = {"fit": "fitted", "holdout": "held out: intervals", "validation": "full models: to judge"}


# --- before -----------------------------------------------------------------------------------------


def minutes(jobs: Sequence[Job], workers: int) -> float:
    """Expected duration of all jobs in minutes, with ``workers`` jobs at a time."""
    return sum(map(seconds, jobs)) / workers / 60


def plan(console: Console, jobs: Sequence[Job], workers: int, known: Collection[str] = ()) -> None:
    """Prints the number of jobs by group and role, and the expected duration. ``known`` are ids of measured jobs."""
    counts = Counter((job.group, job.role) for job in jobs)
    rows = table("varied", *(PURPOSE[role] for role in ROLES), numbers=True)
    for group in dict.fromkeys(job.group for job in jobs):
        rows.add_row(group, *(str(counts[group, role] or "") for role in ROLES))
    rows.add_row("all", *(str(sum(job.role == role for job in jobs)) for role in ROLES), style="bold")
    console.print(rows)
    left = [job for job in jobs if job.id not in known]
    done = f"; {len(jobs) - len(left)} were measured before" if len(left) < len(jobs) else ""
    console.print(f"{len(left)} jobs, {workers} at a time, about {_duration(60 * minutes(left, workers))}{done}.")


def plan_document(jobs: Sequence[Job], workers: int) -> dict[str, Any]:
    """The plan as JSON's types."""
    return {"expected_minutes": round(minutes(jobs, workers), 1), "workers": workers,
            "jobs": [{"id": job.id, "role": job.role, "group": job.group, "workload": to_plain(job.keys)}
                     for job in jobs]}


# --- meanwhile --------------------------------------------------------------------------------------


class Progress:
    """Jobs done and time left, on stderr: a progress bar on a terminal, else a line for each tenth of the jobs."""

    def __init__(self, jobs: Sequence[Job], workers: int, known: Collection[str]) -> None:
        self._jobs = {job.id: job for job in jobs if job.id not in known}
        self._workers, self._ended, self._began = workers, 0, time.monotonic()
        self._left = sum(map(seconds, self._jobs.values()))
        self._bar: progress.Progress | None = None
        self._all = self._left

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and self._jobs:
            from rich import progress
            from rich.console import Console

            columns = (progress.TextColumn("Measuring"), progress.BarColumn(), progress.MofNCompleteColumn(),
                       progress.TextColumn("{task.fields[left]}"))
            self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("", total=len(self._jobs), left=self._text())
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def done(self, row: Row) -> None:
        """Counts a job that ended, and prints its failure if it failed."""
        self._ended += 1
        self._left -= seconds(self._jobs[row.id]) if row.id in self._jobs else 0
        if row.failed is not None:
            self._say(f"{row.id} ({row.group}): {row.failed}")
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=self._ended, left=self._text())
        elif self._ended * 10 // len(self._jobs) > (self._ended - 1) * 10 // len(self._jobs):
            self._say(f"{self._ended} of {len(self._jobs)} jobs, {self._text()}")

    def _say(self, text: str) -> None:
        say(text) if not self._bar else self._bar.console.print(printable(text), markup=False)

    def _text(self) -> str:
        """Expected time left, at the pace so far."""
        past, spent = self._all - self._left, time.monotonic() - self._began
        pace = spent / past if past > 0 else 1 / self._workers
        return f"about {_duration(self._left * pace)} left"


def _duration(seconds: float) -> str:
    return f"{round(seconds / 60)} min" if seconds >= 90 else f"{round(seconds)} s"


# --- afterwards -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The result of a calibration.

    Attributes:
        left: number of jobs that the time limit left out.
        coverage: counter -> coverage of the intervals on held-out jobs.
        groups: errors of each group when it is left out of the fit.
    """

    profile: Profile
    file: str
    measurements: str
    rows: tuple[Row, ...]
    left: int
    coverage: Mapping[str, Coverage]
    groups: tuple[GroupErrors, ...]


def document(result: Result) -> dict[str, Any]:
    """The result as JSON's types."""
    return {
        "profile_file": result.file, "measurements_file": result.measurements, "jobs": _counts(result),
        "failed": {row.id: row.failed for row in result.rows if row.failed is not None},
        "coverage": to_plain(result.coverage), "cross_validation": to_plain(result.groups),
        "unexplained": unexplained(result.rows), "profile": to_plain(result.profile)}


def _counts(result: Result) -> dict[str, int]:
    failed, skipped = sum(row.failed is not None for row in result.rows), sum(row.skipped for row in result.rows)
    return {"measured": len(result.rows) - failed, "failed": failed - skipped, "skipped": skipped,
            "left_out_by_the_time_limit": result.left}


def unexplained(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Role -> median and worst of |measured less predicted|, relative to the measured peak of requested bytes."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        if row.failed is None and row.record and row.unexplained_bytes is not None:
            peak = row.record.peak("requested_bytes").bytes
            shares.setdefault(row.role, []).append(abs(row.unexplained_bytes) / peak)
    return {role: {"jobs": len(values), "median": median(values), "worst": max(values)}
            for role, values in shares.items()}


def report(console: Console, result: Result) -> None:
    """Prints the fitted profile and its validation."""
    profile = result.profile
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in _counts(result).items() if count)
    console.print(f"{result.file}: profile of {profile.device.product} ({profile.measured_on}); jobs: {counts}.",
                  style="bold")
    if result.left:
        console.print(f"The same command with --force resumes: {result.measurements} is kept.")
    console.print()
    report_profile(console, profile)
    console.print()
    console.print(intervals(profile, {name: coverage.rate for name, coverage in result.coverage.items()}))
    if result.groups:
        console.print()
        console.print(_groups(result.groups))
    for row in result.rows:
        if row.failed is not None:
            for part in wrapped(console, f"{row.id} ({row.role}, {row.group}): {row.failed}", indent=0):
                console.print(part)


def _groups(groups: Sequence[GroupErrors]) -> Table:
    counters = list(groups[0].without)
    rows = table("left out of the fit", "jobs", *(f"{counter}: without, with profile" for counter in counters))
    for group in groups:
        cells = [f"{group.without[counter]:.4%}, {group.fitted[counter]:.4%}" for counter in counters]
        rows.add_row(group.group, str(group.jobs), *cells,
                     style="bold red" if group.worse else None)
    return rows
