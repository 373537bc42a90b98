"""A dataset as far as memory goes: how many tokens and images each sample has, from a file of the user's.

    lengths.jsonl   {"tokens": 812, "images": 1}        a line a sample
    lengths.csv     tokens,images                       with that first line
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
from predictor.common.suggestions import named, nearest, show

LARGEST_FILE_BYTES = 256 << 20
COLUMNS = ("tokens", "images")
MOST = (1 << 22, 4_096)
"""Tokens and images of one sample."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Tokens that the language model sees, image tokens included, and images: ``int64[samples]`` each."""

    tokens: np.ndarray
    images: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, longest: int) -> Samples:
        """What training keeps of them."""
        return Samples(np.minimum(self.tokens, longest), self.images)


def read(path: str) -> Samples:
    """The samples of a file; a sample that names no images has one.

    Raises:
        InputError: the file, or the first sample that is wrong, by its number.
    """
    name = named(path)
    text = read_text(path, "the samples", LARGEST_FILE_BYTES)
    kind = path.lower().rpartition(".")[2]
    if kind not in FORMS:
        raise InputError(f"{name}: must end in .{', .'.join(FORMS)}, which says how its samples are written")
    rows = [_row(row, where) for where, row in FORMS[kind](text, name)]
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
    except csv.Error as error:  # a quotation of more characters than the module takes
        raise InputError(f"{name}: line {reader.line_num:,}: {error}: write tokens,images") from None


FORMS = {"jsonl": _jsonl, "csv": _csv, "json": _json}
"""Ending of a file's name -> its samples as plain data, each with where it stands."""


def _check_names(names: Sequence[Any], where: str) -> None:
    for name in names:
        if name not in COLUMNS:
            raise InputError(f"{where}: unknown name {show(name)}{nearest(name, COLUMNS)}: a sample has "
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
            raise InputError(f"{where}: {column} must be a whole number from {least} to {most:,}, not {show(value)}")
    return values
