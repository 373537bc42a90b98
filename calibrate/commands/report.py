"""Report the accuracy of predictions: measurements beside today's predictions, errors by group, gates."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from predictor.commands import output
from predictor.common.errors import InputError
from predictor.common.streams import say
from predictor.common.value_types import Invalid, Whole
from predictor.model.code_models import not_run

CHOICES = ("none", "fast", "all")
WORST = 3
"""Cases that are explained, unless the user asks for another number."""
EXAMPLES = """examples:
  peakcast report profiles/h100-80gb
  peakcast report profiles/h100-80gb --details
  peakcast report measurement.json campaign.jsonl --profile h100.json -o report
  peakcast report profiles/h100-80gb --gate profiles/gates.toml
  peakcast report profiles/h100-80gb --baselines fast -o report      then open report/report.html

RECORDS are files or directories of measurements: records of peakcast measure --json -o, the measurements of peakcast
calibrate, and the compact rows of profiles/. Files and rows that cannot be read, are duplicates or cannot be predicted
are skipped, and named. A model that no shipped formula covers is traced once (some seconds; needs torch). The answer
has at most 40 lines of 100 columns, unless --worst asks for cases; --details prints all.

exit codes: 0 the report is made and every gate holds, 1 a gate is broken, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the records, the profile, the gates and the output."""
    parser.add_argument("records", metavar="RECORDS", nargs="+", help="files or directories of measurements")
    parser.add_argument("--profile", metavar="FILE",
                        help="predict with this profile; none: without a profile; default: as predict does")
    parser.add_argument("--gate", metavar="FILE", help="thresholds by group (TOML); exit code 1 if one is broken")
    parser.add_argument("--worst", metavar="N",
                        help=f"explain the N worst cases; --details explains {WORST} and all errors beyond 2 %%")
    parser.add_argument("--baselines", choices=CHOICES, default="none",
                        help="also compare other methods (Eq. 1 of the paper, DeepSpeed's and accelerate's "
                             "estimators, states only); all: PyTorch's MemTracker too, a minute for each model and "
                             "shape; default: none")
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="the report as JSON, and nothing else, on the output")
    group.add_argument("-o", "--output", metavar="DIR",
                       help="also write report.html, report.json, report.md, cases.csv and real_gpus.md into this "
                            "directory")
    output.add_details(parser, "all groups, xMem's figures, the paper's jobs, the worst cases with their causes, and "
                       "all that was skipped")
    group.add_argument("--force", action="store_true", help="overwrite an existing report")


def run(arguments: argparse.Namespace) -> int:
    """Compares, reports and writes; the exit code says whether every gate holds."""
    try:
        worst = None if arguments.worst is None else Whole(0, 1 << 20).from_text(arguments.worst)
    except Invalid as error:
        raise InputError(f"--worst {error}") from None
    from calibrate.evidence import comparison as evidence
    from calibrate.evidence import headline, page
    from calibrate.regression import files, gates, report
    from calibrate.regression.baselines import estimates
    from calibrate.report.regression import files as forms

    if arguments.output is not None:
        forms.check(arguments.output, arguments.force)
    limits = gates.read(arguments.gate) if arguments.gate is not None else []
    if arguments.profile not in (None, "none"):
        from predictor.profile import profile

        profile.find(arguments.profile)  # reports a mistake before every case is skipped because of it
    cases, skipped = files.read(arguments.records)
    with not_run():
        comparison = report.make(cases, skipped, profile=arguments.profile, worst=WORST if worst is None else worst,
                                 progress=_progress, said=None if arguments.baselines == "none" else
                                 partial(estimates, slow=arguments.baselines == "all"))
    elsewhere = evidence.load()
    comparison = replace(comparison, real_gpus=headline.summary(elsewhere))
    results = [gates.check(gate, comparison.comparisons) for gate in limits]
    provenance = {"command": " ".join(["peakcast", *sys.argv[1:]]), "profile": arguments.profile}
    if arguments.output is not None:
        forms.write(arguments.output, comparison, results, evidence=page.load(elsewhere), **provenance)

    def document() -> dict:
        from calibrate.regression.document import document

        return document(comparison, results, **provenance)

    def text(console) -> None:
        from calibrate.report.regression import summary, text

        if arguments.details:
            return text.report(console, comparison, results)
        summary.report(console, comparison, results, worst=worst)

    output.write(argparse.Namespace(json=arguments.json, output=None), document, text)
    broken = [line for result in results for line in result.broken]
    if arguments.json:
        for line in broken:
            say(f"peakcast: gate {line}")
    return int(bool(broken))


def _progress(items: Sequence[Any], description: str) -> Iterable[Any]:
    """The items, with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, description=description, console=Console(stderr=True), transient=True)
