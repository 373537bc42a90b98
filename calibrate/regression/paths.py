"""Which files the names that a report is given stand for: what is not read is named."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from calibrate.regression.cases import Skipped
from predictor.common.errors import InputError
from predictor.common.suggestions import named

SUFFIXES = (".json", ".jsonl")
NOT_REGULAR = "not a regular file: only those are read"


def files(path: str | os.PathLike[str]) -> tuple[list[str], list[Skipped]]:
    """The regular files to read, and what is passed over.

    A directory stands for all that ends in one of :data:`SUFFIXES` in it and in its directories, sorted; other names
    in there are no measurements.

    Raises:
        InputError: an empty name, or a path that is not there.
    """
    if not os.fspath(path):
        raise InputError("an empty name: name files or directories of measurements")
    given = Path(path)
    try:
        if given.is_dir():
            return _in_directory(given)
        found = given.exists()
    except (OSError, ValueError):
        found = False
    if not found:
        ranks = given.parent.glob(f"{glob.escape(given.stem)}-rank*{glob.escape(given.suffix)}")
        near = next(iter(sorted(map(str, ranks))), None)
        raise InputError(f"{named(path)}: no such file or directory: " + (
            f"there is {named(near)}, of one rank" if near else "name measurements of peakcast measure or calibrate"))
    if not given.is_file():
        return [], [Skipped(str(path), 0, NOT_REGULAR)]
    if not _suffix(given.name):
        return [], [Skipped(str(path), 0, "its name must end in .json (one record) or in .jsonl (a row each line)")]
    return [str(path)], []


def _in_directory(given: Path) -> tuple[list[str], list[Skipped]]:
    closed: list[OSError] = []
    there = sorted(Path(folder) / name for folder, _, names in os.walk(given, onerror=closed.append)
                   for name in names if _suffix(name))
    skipped = [Skipped(str(error.filename), 0, f"cannot be read: {error.strerror}") for error in closed]
    if not there:
        skipped.append(Skipped(str(given), 0, f"no file in there ends in {' or '.join(SUFFIXES)}"))
    kept = [file for file in there if file.is_file()]
    skipped += [Skipped(str(file), 0, NOT_REGULAR if file.exists() else "cannot be read: a link to nothing")
                for file in there if file not in kept]
    return list(map(str, kept)), skipped


def same(file: str) -> tuple[int, int] | str:
    """What two names of one file have in common, links included."""
    try:
        found = os.stat(file)
    except OSError:  # gone since: reading it says so
        return file
    return found.st_dev, found.st_ino


def _suffix(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)
