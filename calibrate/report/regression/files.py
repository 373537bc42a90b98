"""Writes a regression report into a directory, in every form."""

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
from calibrate.report.regression.page import check as check_page
from calibrate.report.regression.page import page
from predictor.common.errors import InputError
from predictor.common.files import write_together
from predictor.common.safe_text import printable
from predictor.common.suggestions import file_name

NAMES = ("report.html", "report.json", "report.md", "cases.csv", "real_gpus.md")


def check(directory: str, force: bool) -> None:
    """Checks, before anything is computed, that the report can be written to a directory. Makes it if needed.

    Raises:
        InputError: the directory cannot be made or written, or holds a report and ``force`` is false; or what makes
            pages is not installed.
    """
    check_page()
    name = file_name(directory)
    try:
        os.makedirs(directory, exist_ok=True)
    except (OSError, ValueError) as error:
        why = "it is a file" if isinstance(error, FileExistsError) else getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot be made a directory: {why}: name another with -o") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"{name}: is not writable: name another directory with -o")
    present = [file for file in NAMES if (Path(directory) / file).exists()]
    if present and not force:
        raise InputError(f"{name}: has {', '.join(present)} already: add --force to overwrite, or name another "
                         "directory")


def write(directory: str, report: Report, gates: Sequence[Result] = (), *, evidence: str = "", **provenance: Any
          ) -> None:
    """Writes every form, or none of them.

    Args:
        evidence: the page of other people's measurements on real GPUs.
    """
    forms = {"report.html": page(report, gates, **provenance),
             "report.json": json.dumps(document(report, gates, **provenance), indent=1, allow_nan=False) + "\n",
             "report.md": markdown(report, gates), "cases.csv": table(report), "real_gpus.md": evidence}
    write_together({str(Path(directory) / name): forms[name].encode() for name in NAMES})


def table(report: Report) -> str:
    """The text of ``cases.csv``. Unknown values are empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({column: _cell(value) for column, value in row.items()}
                     for row in rows(report.comparisons, report.estimates))
    return stream.getvalue()


def _cell(value: Any) -> Any:
    """A safe cell: no terminal control characters, and no formula. Spreadsheets take a leading ``'`` as "text"."""
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.startswith(("=", "+", "-", "@")) else printable(value)
