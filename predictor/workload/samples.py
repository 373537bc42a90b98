"""Reads the numbers of tokens and images of a dataset's samples from the user's file.

    lengths.jsonl   {"tokens": 812, "images": 1}        one line for each sample
    lengths.csv     tokens,images                       this is the first line
    lengths.json    [812, 1377, …] or [{"tokens": 812, "images": 1}, …]
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor.common.errors import InputError
from predictor.common.files import parse_json, read_text
from predictor.common.suggestions import file_name, nearest, quoted

LARGEST_FILE_BYTES = 256 << 20
COLUMNS = ("tokens", "images")
MOST = (1 << 22, 4_096)
"""Largest numbers of tokens and images of one sample."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Tokens (image tokens included) and images of each sample of a dataset, both as ``int64[samples]``."""

    tokens: np.ndarray
    images: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, longest: int) -> Samples:
        """These samples truncated to ``longest`` tokens, as training truncates them."""
        return Samples(np.minimum(self.tokens, longest), self.images)


def read(path: str) -> Samples:
    """Reads the samples of a file. A sample without ``images`` has one image.

    Raises:
        InputError: the file cannot be read, or a sample is wrong; the message names the first wrong one by its number.
    """
    name = file_name(path)
    text = read_text(path, "the samples", LARGEST_FILE_BYTES)
    ending = path.lower().rpartition(".")[2]
    if ending not in FORMS:
        raise InputError(f"{name}: must end in .{', .'.join(FORMS)}, which says how its samples are written")
    rows = [_row(row, where) for where, row in FORMS[ending](text, name)]
    if not rows:
        raise InputError(f"{name}: holds no sample")
    return Samples(*np.array(rows, dtype=np.int64).T)


def _json(text: str, name: str) -> Iterator[tuple[str, Any]]:
    document = parse_json(text, name)
    if not isinstance(document, list):
        raise InputError(f"{name}: must be a list of samples: [812, 1377] or [{{\"tokens\": 812, \"images\": 1}}]")
    for number, row in enumerate(document, start=1):
        yield f"{name}: sample {number:,}", row


def _jsonl(text: str, name: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            where = f"{name}: line {number:,}"
            yield where, parse_json(line, where)


def _csv(text: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text))
    names = [column.strip() for column in next(_rows(reader, name), [])]
    if not any(name in COLUMNS or nearest(name, COLUMNS) for name in names):
        raise InputError(f"{name}: its first line must name the columns: tokens,images")
    _check_names(names, f"{name}: line 1")
    for row in _rows(reader, name):
        where = f"{name}: line {reader.line_num:,}"
        if row and len(row) != len(names):
            raise InputError(f"{where}: has {len(row)} value(s), but the first line names {len(names)} column(s)")
        if row:
            yield where, {column: _number(cell) for column, cell in zip(names, row) if cell.strip()}


def _rows(reader: Any, name: str) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:  # a quoted cell is longer than the csv module's limit
        raise InputError(f"{name}: line {reader.line_num:,}: {error}: write tokens,images") from None


FORMS = {"jsonl": _jsonl, "csv": _csv, "json": _json}
"""Ending of a file's name -> function that yields each sample as plain data, with its place in the file."""


def _check_names(names: Sequence[Any], where: str) -> None:
    for name in names:
        if name not in COLUMNS:
            raise InputError(f"{where}: unknown name {quoted(name)}{nearest(name, COLUMNS)}: a sample has "
                             f"{' and '.join(COLUMNS)} alone")
        if names.count(name) > 1:
            raise InputError(f"{where}: {name} is named twice: keep one")


def _number(text: str) -> Any:
    return int(text) if text.strip().isdecimal() and len(text) < 20 else text


def _row(row: Any, where: str) -> tuple[int, int]:
    row = row if isinstance(row, dict) else {"tokens": row}
    _check_names(list(row), where)
    values = row.get("tokens"), row.get("images", 1)
    for column, value, least, most in zip(COLUMNS, values, (1, 0), MOST):
        if type(value) is not int or not least <= value <= most:
            raise InputError(f"{where}: {column} must be a whole number from {least} to {most:,}, not {quoted(value)}")
    return values
