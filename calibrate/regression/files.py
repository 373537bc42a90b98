"""Reads files and directories of measurements: what can be read as cases, what cannot by name with the reason."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from calibrate.regression import forms
from calibrate.regression.cases import Case, Skipped
from predictor.errors import InputError
from predictor.suggest import show

SUFFIXES = (".json", ".jsonl")
LARGEST_LINE_BYTES = 16 << 20


def read(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Case], list[Skipped]]:
    """All cases of all files, in their order, and what was skipped.

    A directory stands for all its ``.json`` and ``.jsonl`` files, those of its directories too. Of two measurements of
    the same job the first counts; of two rows of a campaign with the same id, the last, as in the campaign.

    Raises:
        InputError: a path that is not there, or nothing that could be read at all.
    """
    cases: dict[str, Case] = {}
    skipped: list[Skipped] = []
    seen: set[str] = set()
    for path in paths:
        files = _files(path)
        if not files:
            skipped.append(Skipped(os.fspath(path), 0, f"no file in there ends in {' or '.join(SUFFIXES)}"))
        for file in files:
            real = os.path.realpath(file)
            if real in seen:
                continue
            seen.add(real)
            for found in _of_file(file):
                first = cases.get(found.identity) if isinstance(found, Case) else None
                if isinstance(found, Skipped):
                    skipped.append(found)
                elif first is not None:
                    skipped.append(Skipped(found.file, found.line, f"the same job as {first.source}", found.id))
                else:
                    cases[found.identity] = found
    if not cases:
        why = f": {skipped[0].source}: {skipped[0].why}" if skipped else ""
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise InputError(f"no measurement that can be read in {', '.join(map(_named, paths))}{why}{more}")
    return list(cases.values()), skipped


def _files(path: str | os.PathLike[str]) -> list[str]:
    given = Path(path)
    try:
        if given.is_dir():
            return [str(file) for file in sorted(given.rglob("*")) if file.suffix in SUFFIXES and file.is_file()]
        found = given.exists()
    except (OSError, ValueError):
        found = False
    if not found:
        raise InputError(f"{_named(path)}: no such file or directory: name measurements of peakcast measure or "
                         "calibrate")
    return [str(path)]


def _of_file(file: str) -> Iterator[Case | Skipped]:
    try:
        with open(file, "rb") as stream:
            content = stream.read()
    except OSError as error:
        yield Skipped(file, 0, f"cannot be read: {error.strerror}")
        return
    if not file.endswith(".jsonl"):
        yield from _of_document(content, file, 0, "cut off or damaged")
        return
    lines = content.split(b"\n")
    last_ids = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            last_ids[_id(line)] = number
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        again = last_ids.get(_id(line), number)
        if _id(line) is not None and again != number:
            yield Skipped(file, number, f"measured again: line {again} counts", _id(line) or "")
        else:
            how = "the last line was cut off while it was written" if number == len(lines) else "damaged"
            yield from _of_document(line, file, number, how)


def _id(line: bytes) -> str | None:
    """The id of a campaign's row, without reading all of it: rows begin with it (``rows.to_line``)."""
    found = re.match(rb'{"id":"([^"]*)"', line)
    return found[1].decode("ascii", "replace") if found else None


def _of_document(content: bytes, file: str, line: int, how: str) -> Iterator[Case | Skipped]:
    try:
        if len(content) > LARGEST_LINE_BYTES:
            raise InputError(f"larger than {LARGEST_LINE_BYTES >> 20} MiB: this is no measurement")
        yield from forms.read(_parsed(content, how), file, line)
    except InputError as error:
        yield Skipped(file, line, " ".join(str(error).split()))
    except Exception as error:  # values of other types than they should be can lead anywhere
        yield Skipped(file, line, f"damaged: {type(error).__name__}: {show(' '.join(str(error).split()), 100)[1:-1]}")


def _parsed(content: bytes, how: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise InputError(f"not valid JSON: {how}") from None


def _named(path: str | os.PathLike[str]) -> str:
    return show(os.fspath(path), 200)[1:-1]
