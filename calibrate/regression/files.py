"""Reads files and directories of measurements. Names what cannot be read, with the reason."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from calibrate.regression import file_formats
from calibrate.regression import paths as places
from calibrate.regression.cases import Case, Skipped
from predictor.common.errors import InputError
from predictor.common.files import open_bounded
from predictor.common.suggestions import file_name, quoted

LARGEST_LINE_BYTES = 16 << 20
"""Largest document that is read into memory."""
EMPTY = "empty: no measurement is in there"
MOST_SKIPPED = 1_000
"""Of a file whose first lines, so many, are no measurements, the rest is not read."""


def read(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Case], list[Skipped]]:
    """All cases of all files, in their order, and the skipped measurements.

    :func:`calibrate.regression.paths.files` lists the files; each is read once. Of two measurements of the same job the
    first counts. Of campaign rows with the same id, the last one counts that measured something, out of memory or not.

    Raises:
        InputError: a path does not exist, or nothing could be read.
    """
    cases: dict[str, Case] = {}
    skipped: list[Skipped] = []
    seen: dict[object, str] = {}
    for path in paths:
        files, passed_over = places.files(path)
        for file in files:
            key = places.identity(file)
            if key in seen:
                reason = "named twice" if seen[key] == file else f"the same file as {seen[key]}"
                passed_over.append(Skipped(file, 0, f"{reason}: read once"))
                continue
            seen[key] = file
            for entry in _of_file(file):
                if isinstance(entry, Skipped):
                    passed_over.append(entry)
                elif entry.identity in cases:
                    source = cases[entry.identity].source
                    passed_over.append(Skipped(entry.file, entry.line, f"the same job as {source}", entry.id))
                else:
                    cases[entry.identity] = entry
        skipped += _calibrations_as_one(path, passed_over) if os.path.isdir(path) else passed_over
    if not cases:
        why = f": {skipped[0].source}: {skipped[0].why}" if skipped else ""
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise InputError(f"no measurement that can be read in {', '.join(map(file_name, paths))}{why}{more}")
    return list(cases.values()), skipped


def _calibrations_as_one(directory: str | os.PathLike[str], skipped: Sequence[Skipped]) -> list[Skipped]:
    """Merges the entries of all profiles of a directory into one: profiles are kept beside their measurements."""
    profiles = [entry for entry in skipped if entry.why == file_formats.CALIBRATION]
    others = [entry for entry in skipped if entry.why != file_formats.CALIBRATION]
    if len(profiles) > 1:
        names = ", ".join(os.path.relpath(entry.file, directory) for entry in profiles)
        return [Skipped(os.fspath(directory), 0, f"calibrations, not measurements: {names}"), *others]
    return [*(replace(entry, why="a calibration, not a measurement") for entry in profiles), *others]


@dataclass(frozen=True)
class _Row:
    """A line of a file of rows, with its cases or the reason to skip it. ``id`` is None if the line has none."""

    file: str
    number: int
    id: str | None
    entries: tuple[Case | Skipped, ...]

    @property
    def counts(self) -> bool:
        """Whether something was measured."""
        return any(isinstance(entry, Case) for entry in self.entries)


def _of_file(file: str) -> list[Case | Skipped]:
    entries: Iterable[Case | Skipped]
    try:
        with open_bounded(file, pipes=False) as stream:
            if file.lower().endswith(".jsonl"):
                entries = _chosen(_rows(stream, file))
            else:
                content = stream.read(LARGEST_LINE_BYTES + 1)
                entries = _of_document(content, file, 0, "cut off or damaged") if content.strip() else []
    except OSError as error:
        return [Skipped(file, 0, f"cannot be read: {error.strerror}")]
    read = list(entries)
    reasons = {entry.why if isinstance(entry, Skipped) else None for entry in read}
    if len(read) > 1 and len(reasons) == 1 and None not in reasons:
        return [Skipped(file, 0, f"all {len(read)} lines: {reasons.pop()}")]
    return read or [Skipped(file, 0, EMPTY)]


def _rows(stream: BinaryIO, file: str) -> list[_Row]:
    """The rows of a file; of a file that begins with :data:`MOST_SKIPPED` lines without a measurement only those."""
    rows: list[_Row] = []
    has_case = False
    for number, line in _lines(stream):
        rows.append(_row(line, file, number))
        has_case = has_case or any(not isinstance(entry, Skipped) for entry in rows[-1].entries)
        if not has_case and len(rows) >= MOST_SKIPPED:
            why = f"none of the first {MOST_SKIPPED:,} lines is a measurement: the rest is not read"
            return [*rows, _Row(file, number + 1, None, (Skipped(file, number + 1, why),))]
    return rows


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line that is not blank. Of a line that is too long, only enough to notice that."""
    number = 0
    while line := stream.readline(LARGEST_LINE_BYTES + 1):
        number += 1
        rest = line if len(line) > LARGEST_LINE_BYTES else b""
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(LARGEST_LINE_BYTES)
        if line.strip():
            yield number, line


def _row(line: bytes, file: str, number: int) -> _Row:
    reason = "damaged" if line.endswith(b"\n") else "the last line was cut off while it was written"
    key = _id(line)
    return _Row(file, number, key, tuple(replace(entry, name=key or "") if isinstance(entry, Skipped) else entry
                                   for entry in _of_document(line, file, number, reason)))


def _id(line: bytes) -> str | None:
    """The id of a campaign's row, even of a damaged one: rows begin with it (``campaign.rows.to_line``)."""
    match = re.match(rb'\s*{\s*"id"\s*:\s*"([^"\\]*)"', line)
    return match[1].decode("ascii", "replace") if match else None


def _chosen(rows: Sequence[_Row]) -> Iterator[Case | Skipped]:
    """The entries of all rows. Rows that another row with the same id replaces are skipped."""
    counts = {row.id: row.number for row in rows if row.counts}
    for row in rows:
        number = row.number if row.id is None else counts.get(row.id, row.number)
        if number == row.number:
            yield from row.entries
        elif number > row.number:
            yield Skipped(row.file, row.number, f"measured again: line {number} counts", row.id or "")
        else:
            yield from (replace(entry, why=f"{entry.why} (line {number} counts)")
                        for entry in row.entries if isinstance(entry, Skipped))


def _of_document(content: bytes, file: str, line: int, reason: str) -> Iterator[Case | Skipped]:
    try:
        if len(content) > LARGEST_LINE_BYTES:
            raise InputError(f"larger than {LARGEST_LINE_BYTES >> 20} MiB: this is no measurement")
        yield from file_formats.read(_parsed(content, reason), file, line)
    except InputError as error:
        yield Skipped(file, line, " ".join(str(error).split()))
    except Exception as error:  # values of unexpected types can raise anything
        yield Skipped(file, line, f"damaged: {type(error).__name__}: {quoted(' '.join(str(error).split()), 100)[1:-1]}")


def _parsed(content: bytes, reason: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise InputError(f"not valid JSON: {reason}") from None
