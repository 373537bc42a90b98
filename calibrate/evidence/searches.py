"""Where measurements were looked for, and with what result: a table is as good as the search behind it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calibrate.evidence.sources import DIRECTORY
from predictor.common.files import read_mapping
from predictor.common.json_dataclasses import from_plain

FILE = DIRECTORY / "searches.json"


@dataclass(frozen=True)
class Search:
    """One search: where, for what, and what was found."""

    where: str
    what: str
    found: str


def read(path: Path = FILE) -> tuple[Search, ...]:
    """The searches of a file.

    Raises:
        InputError: the file is not valid.
    """
    listed: tuple[Search, ...] = from_plain(tuple[Search, ...], read_mapping(path, "searches")["searches"], path.name)
    return listed
