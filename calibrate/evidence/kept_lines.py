"""What was found for rows and reports of the evidence, kept as JSON lines: one dataclass a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from predictor.common.files import parse_json, read_text
from predictor.common.json_dataclasses import from_plain, to_plain

Entry = TypeVar("Entry")


def read(kind: type[Entry], path: Path, what: str) -> list[Entry]:
    """The entries of a file; none if there is no file.

    Args:
        what: what the file has, for messages.

    Raises:
        InputError: a line is not valid.
    """
    lines = read_text(path, what).splitlines() if path.is_file() else []
    names = (f"{path.name}:{number}" for number in range(1, len(lines) + 1))
    return [from_plain(kind, parse_json(line, name), name) for line, name in zip(lines, names)]


def write(entries: Iterable[Any], path: Path) -> None:
    """Writes a file with these entries, in their order."""
    path.write_text("".join(f"{json.dumps(to_plain(entry))}\n" for entry in entries))
