"""Measured jobs as lines of a file: what is there is not measured again, so an interrupted check goes on."""

from __future__ import annotations

import contextlib
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
Row = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """The rows of a file, and how a job that is not there yet becomes one."""

    file: Path
    row: Callable[[Mapping[str, Any]], Row]
    known_by: tuple[str, ...] = ("job",)
    """Keys of a job that its row has too: a row that has the same is its own."""
    forked: bool = False
    """Emulated jobs are forked from one that has imported everything."""

    def __call__(self, jobs: Iterable[Mapping[str, Any]], given: Namespace) -> list[Row]:
        """All rows, the new ones last; nothing is measured with ``--table-only``."""
        rows = lines(self.file)
        if given.table_only:
            return rows
        known = [self._identity(row) for row in rows]
        missing = [job for job in jobs if self._identity(job) not in known]
        with warm_workers.jobs() if self.forked else contextlib.nullcontext():
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
    """The rows of a file; none, if it is not there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def append(file: Path, row: Mapping[str, Any]) -> None:
    with file.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def listed(module: str) -> list[Row]:
    """The jobs of the JSON list beside a module, each with the line of the table that it stands for."""
    groups = json.loads(Path(module).with_suffix(".json").read_text())
    return [{"group": group, "job": job} for group, jobs in groups.items() for job in jobs]


def compact_row(measured: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], Row]:
    """Makes the compact row of a job of what ``measured`` finds of it."""
    def row(asked: Mapping[str, Any]) -> Row:
        job, more = asked["job"], {key: value for key, value in asked.items() if key != "job"}
        return compact.row(job, measured(job), **more)

    return row
