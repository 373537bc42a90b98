"""The files of a regression report: one directory with the report in every form."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrate.regression.columns import COLUMNS, rows
from calibrate.regression.document import document
from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from calibrate.report.regression.markdown import markdown
from calibrate.report.regression.page import page
from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.safe_text import printable
from predictor.common.suggestions import named

NAMES = ("report.html", "report.json", "report.md", "cases.csv")
def check(directory: str, force: bool) -> None:
    """Refuses, before anything is computed, a directory that the report cannot be written to; makes it if needed.

    Raises:
        InputError: it cannot be made or written, or holds a report and ``force`` is false.
    """
    name = named(directory)
    try:
        os.makedirs(directory, exist_ok=True)
    except (OSError, ValueError) as error:
        why = "it is a file" if isinstance(error, FileExistsError) else getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot be made a directory: {why}: name another with -o") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"{name}: is not writable: name another directory with -o")
    there = [file for file in NAMES if (Path(directory) / file).exists()]
    if there and not force:
        raise InputError(f"{name}: has {', '.join(there)} already: add --force to overwrite, or name another directory")


def write(directory: str, made: Report, gates: Sequence[Result] = (), **provenance: Any) -> None:
    """Writes every form; each file whole or not at all."""
    forms = {"report.html": page(made, gates, **provenance),
             "report.json": json.dumps(document(made, gates, **provenance), indent=1, allow_nan=False) + "\n",
             "report.md": markdown(made, gates), "cases.csv": table(made)}
    for name in NAMES:
        write_whole(str(Path(directory) / name), forms[name].encode())


def table(made: Report) -> str:
    """``cases.csv``; what is not known is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({column: _cell(value) for column, value in row.items()} for row in rows(made))
    return stream.getvalue()


def _cell(value: Any) -> Any:
    """Text that neither steers a terminal nor is a formula for a spreadsheet, which takes ``'`` as "this is text"."""
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.startswith(("=", "+", "-", "@")) else printable(value)
