"""Reads files and directories of measurements: what can be read as cases, what cannot by name with the reason."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from calibrate.regression import file_formats
from calibrate.regression import paths as places
from calibrate.regression.cases import Case, Skipped
from predictor.common.errors import InputError
from predictor.common.files import opened
from predictor.common.suggestions import named, show

LARGEST_LINE_BYTES = 16 << 20
"""No more of a document is held in memory."""
EMPTY = "empty: no measurement is in there"


def read(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Case], list[Skipped]]:
    """All cases of all files, in their order, and what was skipped.

    Names stand for files as :func:`calibrate.regression.paths.files` has it; each file is read once. Of two
    measurements of the same job the first counts; of rows of a campaign with the same id, the last that measured
    something, out of memory or not.

    Raises:
        InputError: a path that is not there, or nothing that could be read at all.
    """
    cases: dict[str, Case] = {}
    skipped: list[Skipped] = []
    seen: dict[object, str] = {}
    for path in paths:
        files, passed_over = places.files(path)
        for file in files:
            key = places.same(file)
            if key in seen:
                which = "named twice" if seen[key] == file else f"the same file as {seen[key]}"
                passed_over.append(Skipped(file, 0, f"{which}: read once"))
                continue
            seen[key] = file
            for found in _of_file(file):
                if isinstance(found, Skipped):
                    passed_over.append(found)
                elif found.identity in cases:
                    source = cases[found.identity].source
                    passed_over.append(Skipped(found.file, found.line, f"the same job as {source}", found.id))
                else:
                    cases[found.identity] = found
        skipped += _calibrations_as_one(path, passed_over) if os.path.isdir(path) else passed_over
    if not cases:
        why = f": {skipped[0].source}: {skipped[0].why}" if skipped else ""
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise InputError(f"no measurement that can be read in {', '.join(map(named, paths))}{why}{more}")
    return list(cases.values()), skipped


def _calibrations_as_one(directory: str | os.PathLike[str], skipped: Sequence[Skipped]) -> list[Skipped]:
    """Profiles lie beside what they were fitted to: one entry for all of a directory that nobody named one by one."""
    found = [one for one in skipped if one.why == file_formats.CALIBRATION]
    others = [one for one in skipped if one.why != file_formats.CALIBRATION]
    if len(found) > 1:
        names = ", ".join(os.path.relpath(one.file, directory) for one in found)
        return [Skipped(os.fspath(directory), 0, f"calibrations, not measurements: {names}"), *others]
    return [*(replace(one, why="a calibration, not a measurement") for one in found), *others]


@dataclass(frozen=True)
class _Row:
    """A line of rows and what came of it; ``id`` where it has one, damaged or not."""

    file: str
    number: int
    id: str | None
    found: tuple[Case | Skipped, ...]

    @property
    def counts(self) -> bool:
        """Whether something was measured."""
        return any(isinstance(one, Case) for one in self.found)


def _of_file(file: str) -> list[Case | Skipped]:
    try:
        with opened(file, pipes=False) as stream:
            if file.lower().endswith(".jsonl"):
                found = _chosen([_row(line, file, number) for number, line in _lines(stream)])
            else:
                content = stream.read(LARGEST_LINE_BYTES + 1)
                found = _of_document(content, file, 0, "cut off or damaged") if content.strip() else []
    except OSError as error:
        return [Skipped(file, 0, f"cannot be read: {error.strerror}")]
    return list(found) or [Skipped(file, 0, EMPTY)]


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line that is not blank; of one that is too long, a little more than may be."""
    number = 0
    while line := stream.readline(LARGEST_LINE_BYTES + 1):
        number += 1
        rest = line if len(line) > LARGEST_LINE_BYTES else b""
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(LARGEST_LINE_BYTES)
        if line.strip():
            yield number, line


def _row(line: bytes, file: str, number: int) -> _Row:
    how = "damaged" if line.endswith(b"\n") else "the last line was cut off while it was written"
    key = _id(line)
    return _Row(file, number, key, tuple(replace(one, name=key or "") if isinstance(one, Skipped) else one
                                   for one in _of_document(line, file, number, how)))


def _id(line: bytes) -> str | None:
    """The id of a campaign's row, even of a damaged one: rows begin with it (``campaign.rows.to_line``)."""
    found = re.match(rb'\s*{\s*"id"\s*:\s*"([^"\\]*)"', line)
    return found[1].decode("ascii", "replace") if found else None


def _chosen(rows: Sequence[_Row]) -> Iterator[Case | Skipped]:
    """What the rows are, those that another row with their id stands for as skipped."""
    counts = {row.id: row.number for row in rows if row.counts}
    for row in rows:
        number = row.number if row.id is None else counts.get(row.id, row.number)
        if number == row.number:
            yield from row.found
        elif number > row.number:
            yield Skipped(row.file, row.number, f"measured again: line {number} counts", row.id)
        else:
            yield from (replace(one, why=f"{one.why} (line {number} counts)") for one in row.found)


def _of_document(content: bytes, file: str, line: int, how: str) -> Iterator[Case | Skipped]:
    try:
        if len(content) > LARGEST_LINE_BYTES:
            raise InputError(f"larger than {LARGEST_LINE_BYTES >> 20} MiB: this is no measurement")
        yield from file_formats.read(_parsed(content, how), file, line)
    except InputError as error:
        yield Skipped(file, line, " ".join(str(error).split()))
    except Exception as error:  # values of other types than they should be can lead anywhere
        yield Skipped(file, line, f"damaged: {type(error).__name__}: {show(' '.join(str(error).split()), 100)[1:-1]}")


def _parsed(content: bytes, how: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise InputError(f"not valid JSON: {how}") from None
