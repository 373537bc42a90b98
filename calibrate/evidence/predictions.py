"""The predictions of rows, kept as JSON lines: ``scripts/check.py real_gpus`` appends those that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from calibrate.evidence import kept_lines
from calibrate.evidence.sources import DIRECTORY, Row, Source

FILE = DIRECTORY / "predictions.jsonl"
Key = tuple[str, str]


@dataclass(frozen=True)
class Predicted:
    """What was predicted for a row.

    Attributes:
        digest: of the reconstruction that it was made for (:attr:`Row.digest`).
        bytes: quantity -> bytes.
        events: number of actions of the run's memory history, if it was compared with a recording.
        events_that_differ: of those, how many differ from the recording in what they do or in their size.
    """

    source: str
    row: str
    digest: str
    date: str
    bytes: Mapping[str, int]
    events: int = 0
    events_that_differ: int = 0

    @property
    def key(self) -> Key:
        return self.source, self.row


def read(path: Path = FILE) -> dict[Key, Predicted]:
    """The predictions of a file. Of several for one row the last counts."""
    return {entry.key: entry for entry in kept_lines.read(Predicted, path, "the predictions of the evidence")}


def write(entries: Iterable[Predicted], path: Path = FILE) -> None:
    """Writes a file with these predictions, ordered by source and row."""
    kept_lines.write(sorted(entries, key=lambda entry: entry.key), path)


def of(source: Source, row: Row, entries: Mapping[Key, Predicted]) -> Predicted | None:
    """The prediction of a row's present reconstruction."""
    found = entries.get((source.name, row.id))
    return found if found is not None and found.digest == row.digest else None
