"""Explain a measurement: what was predicted of it, allocation by allocation (``peakcast explain --measured``)."""

from __future__ import annotations

import argparse
import os

from predictor.commands import output
from predictor.common.errors import InputError
from predictor.common.suggestions import named
from predictor.workload.keys import KEYS


def run(arguments: argparse.Namespace) -> int:
    """Attributes and reports; the exit code is 0 whatever is found."""
    given = [name for name in ("workload", "picture", "samples", *KEYS) if getattr(arguments, name, None) is not None]
    if given:
        name = "MODEL" if given[0] == "model" else "--" + given[0].replace("_", "-")
        raise InputError(f"--measured names a job that ran: leave out {name}")
    output.check_path(arguments.output, arguments.force)
    from calibrate.attribution.measurement import attribute_record

    measurement = _read(arguments.measured)
    attribution = attribute_record(measurement, arguments.measured)

    def document() -> dict:
        from calibrate.report.attribution import document

        return document(measurement, attribution)

    def report(console) -> None:
        from calibrate.report.attribution import report

        report(console, measurement, attribution)

    output.write(arguments, document, report)
    return 0


def _read(path: str):
    """The record; a file of rows, which is none, is told by its name."""
    from calibrate.records import record

    try:
        return record.read(path)
    except InputError as error:
        if "not valid JSON" in str(error):
            raise InputError(f"{error}; records are written with peakcast measure --json -o") from None
        if not path.lower().endswith(".jsonl") or not os.path.isfile(path):
            raise
        raise InputError(f"{named(path)}: holds rows of measurements, which peakcast report reads: "
                         "--measured takes one record of peakcast measure --json -o") from None
