"""Lists the measurement files of the paths that a report gets. Names the files that it leaves out."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from calibrate.regression.cases import Skipped
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name

SUFFIXES = (".json", ".jsonl")
NOT_REGULAR = "not a regular file: only those are read"


def files(path: str | os.PathLike[str]) -> tuple[list[str], list[Skipped]]:
    """The regular files to read, and the entries that are left out.

    A directory stands for all files in it and below whose names end in one of :data:`SUFFIXES`, sorted. Other files in
    it are not measurements.

    Raises:
        InputError: the name is empty, or the path does not exist.
    """
    if not os.fspath(path):
        raise InputError("an empty name: name files or directories of measurements")
    root = Path(path)
    try:
        if root.is_dir():
            return _in_directory(root)
        exists = root.exists()
    except (OSError, ValueError):
        exists = False
    if not exists:
        ranks = root.parent.glob(f"{glob.escape(root.stem)}-rank*{glob.escape(root.suffix)}")
        near = next(iter(sorted(map(str, ranks))), None)
        raise InputError(f"{file_name(path)}: no such file or directory: " + (
            f"there is {file_name(near)}, of one rank" if near else
            "name measurements of peakcast measure or calibrate"))
    if not root.is_file():
        return [], [Skipped(str(path), 0, NOT_REGULAR)]
    if not _suffix(root.name):
        return [], [Skipped(str(path), 0, "its name must end in .json (one record) or in .jsonl (a row each line)")]
    return [str(path)], []


def _in_directory(root: Path) -> tuple[list[str], list[Skipped]]:
    errors: list[OSError] = []
    candidates = sorted(Path(folder) / name for folder, _, names in os.walk(root, onerror=errors.append)
                   for name in names if _suffix(name))
    skipped = [Skipped(str(error.filename), 0, f"cannot be read: {error.strerror}") for error in errors]
    if not candidates:
        skipped.append(Skipped(str(root), 0, f"no file in there ends in {' or '.join(SUFFIXES)}"))
    regular = [file for file in candidates if file.is_file()]
    skipped += [Skipped(str(file), 0, NOT_REGULAR if file.exists() else "cannot be read: a link to nothing")
                for file in candidates if file not in regular]
    return list(map(str, regular)), skipped


def identity(file: str) -> tuple[int, int] | str:
    """Device and inode number, which are equal for two names of one file; the name itself if the file is gone."""
    try:
        status = os.stat(file)
    except OSError:  # gone since: reading it reports that
        return file
    return status.st_dev, status.st_ino


def _suffix(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)
