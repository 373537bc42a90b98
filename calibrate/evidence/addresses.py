"""What authors' scripts reserve where the driver's addresses are in other orders, kept as JSON lines.

Of free blocks of one size PyTorch's allocator takes the one at the lowest address, and no source says which addresses
its driver gave. ``scripts/check.py real_gpus --orders N`` runs a script with addresses that are drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from calibrate.evidence import kept_lines
from calibrate.evidence.predictions import Key
from calibrate.evidence.sources import DIRECTORY

FILE = DIRECTORY / "addresses.jsonl"


@dataclass(frozen=True)
class Orders:
    """What one row's script reserved, a run for each order of addresses.

    Attributes:
        digest: of the reconstruction that was run (:attr:`Row.digest`).
        reserved_bytes: of each run; the first has the seed 1 (``Injection.address_seed``), the second 2, and so on.
    """

    source: str
    row: str
    digest: str
    date: str
    reserved_bytes: tuple[int, ...]

    @property
    def key(self) -> Key:
        return self.source, self.row


def read(path: Path = FILE) -> dict[Key, Orders]:
    """The runs of a file, by source and row."""
    return {entry.key: entry for entry in kept_lines.read(Orders, path, "the runs with other addresses")}


def write(entries: Iterable[Orders], path: Path = FILE) -> None:
    """Writes a file with these runs, ordered by source and row."""
    kept_lines.write(sorted(entries, key=lambda entry: entry.key), path)
