"""Reads the numbers of tokens and images of a dataset's samples from the user's file.

    lengths.jsonl   {"tokens": 812, "images": 1}        one line for each sample
    lengths.csv     tokens,images                       this is the first line
    lengths.json    [812, 1377, …] or [{"tokens": 812, "images": 1}, …]

Where pictures differ in size, ``image_sizes`` takes the place of ``images``: ``["768x1024", "640x480"]`` in JSON,
height times width in pixels, and ``768x1024 640x480`` in CSV.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from predictor.common import numbers
from predictor.common.errors import InputError
from predictor.common.files import lines, parse_json, read_text
from predictor.common.suggestions import file_name, nearest, quoted
from predictor.common.value_types import Invalid
from predictor.workload.keys import ImageSize, image_sizes

LARGEST_FILE_BYTES = 256 << 20
COLUMNS = ("tokens", "images", "image_sizes")
MOST = (1 << 22, 4_096)
"""Largest numbers of tokens and images of one sample."""
PLAIN_HEAD = "tokens,images\n"
OTHER_ROW = re.compile(r"^(?![1-9][0-9]{0,6},(?:0|[1-9][0-9]{0,6})\n|\Z)", re.MULTILINE)
"""Where a line begins that is no sample of two plain numbers."""
MOST_IN_A_FILE = 1 << 20
"""Limit on the samples of a file: reading so many takes some seconds and some hundred megabytes."""
Sizes = tuple[tuple[int, int], ...]
"""Height and width in pixels of each picture of a sample."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Tokens (image tokens included) and images of each sample of a dataset, both as ``int64[samples]``.

    ``pictures`` has the sizes of each sample's pictures; it is empty if the file does not tell them.
    """

    tokens: np.ndarray
    images: np.ndarray
    pictures: tuple[Sizes, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, longest: int) -> Samples:
        """These samples truncated to ``longest`` tokens, as training truncates them."""
        return replace(self, tokens=np.minimum(self.tokens, longest))


def read(path: str) -> Samples:
    """Reads the samples of a file. A sample without ``images`` has one image.

    Raises:
        InputError: the file cannot be read, or a sample is wrong; the message names the first wrong one by its number.
    """
    name = file_name(path)
    ending = path.lower().rpartition(".")[2]
    if ending == "parquet":
        raise InputError(f"{name}: lengths are read from .{', .'.join(FORMS)}; for a dataset of texts, add --processor "
                         "DIR")
    text = read_text(path, "the samples", LARGEST_FILE_BYTES)
    if ending not in FORMS:
        raise InputError(f"{name}: must end in .{', .'.join(FORMS)}, which says how its samples are written")
    if ending == "csv" and (plain := _plain(text, name)) is not None:
        return plain
    rows = [_row(row, where) for where, row in islice(FORMS[ending](text, name), MOST_IN_A_FILE + 1)]
    _check_number(rows, name)
    tokens, images = np.array([row[:2] for row in rows], dtype=np.int64).T
    pictures = tuple(sizes or () for _, _, sizes in rows)
    if not any(pictures):
        return Samples(tokens, images)
    untold = next((number for number, (_, count, sizes) in enumerate(rows, start=1) if sizes is None and count), None)
    if untold:
        raise InputError(f"{name}: sample {untold:,}: has no image_sizes, but others have: give those of every sample, "
                         "[] for one without pictures (in CSV an empty cell)")
    return Samples(tokens, images, pictures)


def text(samples: Samples, ending: str) -> str:
    """The content of a file of this ending with these samples, which :func:`read` reads.

    Args:
        ending: a key of :data:`FORMS`.
    """
    columns: dict[str, list[Any]] = {"tokens": samples.tokens.tolist(), "images": samples.images.tolist()}
    if samples.pictures:
        columns["image_sizes"] = [[f"{height}x{width}" for height, width in sizes] for sizes in samples.pictures]
    rows = list(zip(*columns.values()))
    if ending == "csv":
        cells = [tuple(columns), *((*row[:2], *map(" ".join, row[2:])) for row in rows)]
        return "".join(f"{','.join(map(str, line))}\n" for line in cells)
    texts = [json.dumps(dict(zip(columns, row))) for row in rows]
    return "".join(f"{text}\n" for text in texts) if ending == "jsonl" else "[\n" + ",\n".join(texts) + "\n]\n"


def _check_number(samples: Sequence[Any], name: str) -> None:
    if not len(samples):
        raise InputError(f"{name}: holds no sample")
    if len(samples) > MOST_IN_A_FILE:
        raise InputError(f"{name}: holds more than {MOST_IN_A_FILE:,} samples: give so many of them, drawn at random")


def _plain(text: str, name: str) -> Samples | None:
    """The samples of a CSV file that has nothing but two columns of right numbers, as ``peakcast samples`` writes it.

    None for any other file, which is read line by line.
    """
    body = text.removeprefix(PLAIN_HEAD)
    if not (text.startswith(PLAIN_HEAD) and body.endswith("\n")):
        return None
    _check_number(range(body.count("\n")), name)
    if OTHER_ROW.search(body):
        return None
    tokens, images = np.fromstring(body.replace("\n", ","), dtype=np.int64, sep=",").reshape(-1, 2).T.copy()
    return Samples(tokens, images) if tokens.max() <= MOST[0] and images.max() <= MOST[1] else None


def _json(text: str, name: str) -> Iterator[tuple[str, Any]]:
    document = parse_json(text, name)
    if not isinstance(document, list):
        raise InputError(f"{name}: must be a list of samples: [812, 1377] or [{{\"tokens\": 812, \"images\": 1}}]")
    for number, row in enumerate(document, start=1):
        yield f"{name}: sample {number:,}", row


def _jsonl(text: str, name: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines(text), start=1):
        if line.strip():
            where = f"{name}: line {number:,}"
            yield where, parse_json(line, where)


def _csv(text: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.reader(lines(text))
    names = [column.strip() for column in next(_rows(reader, name), [])]
    if not any(name in COLUMNS or nearest(name, COLUMNS) for name in names):
        raise InputError(f"{name}: its first line must name the columns: tokens,images")
    _check_names(names, f"{name}: line 1")
    for row in _rows(reader, name):
        where = f"{name}: line {reader.line_num:,}"
        if row and len(row) != len(names):
            raise InputError(f"{where}: has {len(row)} value(s), but the first line names {len(names)} column(s)")
        if row:
            sample: dict[str, Any] = {column: _number(cell) for column, cell in zip(names, row) if cell.strip()}
            if "image_sizes" in names and "images" not in names:  # no size is no image, as [] is in JSON
                sample.setdefault("image_sizes", [])
            yield where, sample


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
                             "tokens, and images or image_sizes, alone; for a dataset of texts, add --processor DIR")
        if names.count(name) > 1:
            raise InputError(f"{where}: {name} is named twice: keep one")


def _number(text: str) -> Any:
    number = numbers.whole(text.strip())
    return text if number is None else number


def _row(row: Any, where: str) -> tuple[int, int, Sizes | None]:
    row = row if isinstance(row, dict) else {"tokens": row}
    _check_names(list(row), where)
    sizes = _sizes(row["image_sizes"], where) if row.get("image_sizes") is not None else None
    if row.get("tokens") is None:
        raise InputError(f"{where}: says no tokens: each sample must have them, those of its images included")
    values = row["tokens"], row.get("images", 1 if sizes is None else len(sizes))
    for column, value, least, most in zip(COLUMNS, values, (1, 0), MOST):
        if type(value) is not int or not least <= value <= most:
            raise InputError(f"{where}: {column} must be a whole number from {least} to {most:,}, not {quoted(value)}")
    if sizes is not None and values[1] != len(sizes):
        raise InputError(f"{where}: images is {values[1]}, but image_sizes has {len(sizes)}: leave images out")
    return values[0], values[1], sizes


def _sizes(value: Any, where: str) -> Sizes:
    """The sizes of a sample's pictures, from a list, from text with spaces between them, or one number of pixels."""
    value = value.split() if isinstance(value, str) else [value] if type(value) is int else value
    if not isinstance(value, list):
        raise InputError(f'{where}: image_sizes must be a list such as ["768x1024"], not {quoted(value)}')
    if not all(type(size) is int or isinstance(size, str) and "," not in size for size in value):
        raise InputError(f'{where}: image_sizes has one size for each picture, such as ["768x1024", "640x480"] or, in '
                         f"CSV, 768x1024 640x480, not {quoted(str(value))}")
    try:
        return sum((image_sizes(ImageSize().check(size)) for size in value), ())
    except Invalid as error:
        raise InputError(f"{where}: image_sizes {error}") from None
