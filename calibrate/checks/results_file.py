"""Results files: measured jobs as JSON lines. Jobs in the file are not measured again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from calibrate.measure import warm_workers
from calibrate.regression import compact
from predictor.common.errors import InputError

bar = partial(track, console=Console(stderr=True))
"""Wraps a sequence with a progress bar on stderr: ``bar(jobs, "Measuring")``."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """Measures the jobs that have no row in a file yet, and appends their rows.

    Attributes:
        file: the rows, one JSON object a line.
        row: measures a job and returns its row.
        known_by: keys that identify a job; its row has the same values.
        forked: fork emulated jobs from a process that has imported everything.
    """

    file: Path
    row: Callable[[Mapping[str, Any]], Row]
    known_by: tuple[str, ...] = ("job",)
    forked: bool = False

    def __call__(self, jobs: Iterable[Mapping[str, Any]], args: Namespace) -> list[Row]:
        """All rows, new ones last. Measures nothing with ``--table-only``. Names jobs that fail on stderr."""
        rows = lines(self.file)
        if args.table_only:
            return rows
        known = [self._identity(row) for row in rows]
        missing = [job for job in jobs if self._identity(job) not in known]
        with warm_workers.forked_jobs() if self.forked else contextlib.nullcontext():
            for job in bar(missing, "Measuring"):
                try:
                    rows.append(self.row(job))
                except InputError as error:
                    print(f"{json.dumps(job)}: {error}", file=sys.stderr)
                else:
                    append(self.file, rows[-1])
        return rows

    def _identity(self, job: Mapping[str, Any]) -> list[Any]:
        return [job[key] for key in self.known_by]


def lines(file: Path) -> list[Row]:
    """The rows of a file; an empty list if it does not exist.

    A last line without a newline is left out: the check was killed while writing it.
    """
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().rpartition("\n")[0].splitlines()]


def append(file: Path, row: Mapping[str, Any]) -> None:
    """Appends a row to a file as a line of JSON, in place of an incomplete last line, by one process at a time."""
    with file.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)
        stream.write(json.dumps(row).encode() + b"\n")


def listed(module: str) -> list[Row]:
    """The jobs of the JSON list beside a module, each with its group: the feature that it covers."""
    groups = json.loads(Path(module).with_suffix(".json").read_text())
    return [{"group": group, "job": job} for group, jobs in groups.items() for job in jobs]


def compact_row(measured: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], Row]:
    """A function that measures a job with ``measured`` and returns its compact row (``regression.compact``)."""
    def row(entry: Mapping[str, Any]) -> Row:
        job, more = entry["job"], {key: value for key, value in entry.items() if key != "job"}
        return compact.row(job, measured(job), **more)

    return row
