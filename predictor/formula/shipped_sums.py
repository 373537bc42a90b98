"""SHA-256 sums of the shipped formulas, which notice damage to their files.

They are no defence against an attacker, who can write the sums, too. Files in the user's cache have their sum inside
(:mod:`predictor.common.arrays`).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from predictor.common.errors import InputError

NAME = "SHA256SUMS"
"""File beside the formulas, as ``sha256sum`` writes and checks it."""


def text(directory: Path) -> str:
    """The content of :data:`NAME` for the formulas in a directory."""
    return "".join(f"{_sum(path)}  {path.name}\n" for path in sorted(directory.glob("*.npz")))


def check(path: Path) -> None:
    """Compares a formula's file with its sum beside it.

    Raises:
        InputError: the file is damaged, or it has no sum there.
    """
    sums = path.parent / NAME
    expected = _sums(sums, sums.stat().st_mtime_ns).get(path.name) if sums.is_file() else None
    if _sum(path) != expected:
        raise InputError(f"{path}: is damaged, as its SHA-256 is not that in {NAME}: install peakcast again")


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=4)
def _sums(path: Path, _modified: int) -> dict[str, str]:
    """File name -> SHA-256. Lines that are no sum are passed over."""
    rows = [line.split() for line in path.read_bytes().decode(errors="replace").splitlines()]
    return {row[1]: row[0] for row in rows if len(row) == 2}
