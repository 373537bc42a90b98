"""Explains a measurement by its prediction, allocation by allocation (``peakcast explain --measured``)."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from predictor.commands import output
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name
from predictor.model.code_models import not_run
from predictor.workload.keys import KEYS

if TYPE_CHECKING:
    from rich.console import Console

    from calibrate.records.record import Record


def run(arguments: argparse.Namespace) -> int:
    """Compares measured and predicted allocations and reports; the exit code is always 0."""
    extra = [name for name in ("workload", "picture", "samples", *KEYS) if getattr(arguments, name, None) is not None]
    if extra:
        name = "MODEL" if extra[0] == "model" else "--" + extra[0].replace("_", "-")
        raise InputError(f"--measured names a job that ran: leave out {name}")
    output.check_path(arguments.output, arguments.force)
    from calibrate.attribution.measurement import attribute_record

    measurement = _read(arguments.measured)
    with not_run():
        attribution = attribute_record(measurement, arguments.measured)

    def document() -> dict:
        from calibrate.report.attribution import document

        return document(measurement, attribution)

    def report(console: Console) -> None:
        from calibrate.report.attribution import report

        report(console, measurement, attribution)

    output.write(arguments, document, report)
    return 0


def _read(path: str) -> Record:
    """Reads the record. A file of campaign rows has a message of its own."""
    from calibrate.records import record

    try:
        return record.read(path)
    except InputError as error:
        if "not valid JSON" in str(error):
            raise InputError(f"{error}; records are written with peakcast measure --json -o") from None
        if not path.lower().endswith(".jsonl") or not os.path.isfile(path):
            raise
        raise InputError(f"{file_name(path)}: holds rows of measurements, which peakcast report reads: "
                         "--measured takes one record of peakcast measure --json -o") from None
