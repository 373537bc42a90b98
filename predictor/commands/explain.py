"""Explain a prediction: the highest moments with their formulas, modules, layers, and a picture."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from predictor.commands import options, output
from predictor.common import numbers
from predictor.common.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """examples:
  peakcast explain llava-1.5-7b --sequence-length 1024 --per-device-train-batch-size 16 \\
      --data-parallel-size 8 --zero-stage 2
  peakcast explain --workload job.yaml --details
  peakcast explain --workload job.yaml --layers all --moments 10
  peakcast explain --workload job.yaml --picture timeline.svg
  peakcast explain --measured record.json

The answer has at most 40 lines of 100 columns, unless --moments or --layers ask for more; --details prints all,
with 5 moments and 15 layers. The last example puts a measurement (peakcast measure … --snapshot FILE --json -o
record.json) beside its prediction, allocation by allocation; its exit code is 0.

exit codes: 0 it fits or no GPU was named, 1 it does not fit or is uncertain, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the workload, of the output, and for how much to print."""
    options.add_workload(parser)
    options.add_from(parser)
    options.add_python(parser)
    output.add_output(parser)
    output.add_details(parser, "5 moments, 15 layers, the run as a chart, all notes, the calibration, sources and "
                       "defaults of the values, and what is not modelled")
    group = parser.add_argument_group("what to show")
    options.add_samples(group)
    group.add_argument("--moments", metavar="N", help="highest moments to show; default: as many as fit on one screen")
    group.add_argument("--layers", metavar="N|all", help="largest layers to show; default: as many as fit")
    group.add_argument("--picture", metavar="FILE.svg", help="also draw the run as an SVG file: allocated bytes "
                       "by factor, reserved bytes, and the GPU's memory")
    group.add_argument("--measured", metavar="RECORD", help="explain this measurement by its prediction instead")


def run(arguments: argparse.Namespace) -> int:
    """Predicts, explains, and draws. The exit code says whether the workload fits."""
    asked = _asked(arguments)
    for path in (arguments.output, arguments.picture):
        output.check_path(path, arguments.force)
    output.check_different(arguments.picture, arguments.output, "--picture and -o")
    output.check_svg(arguments.picture, "--picture")
    workload = options.workload(arguments)
    from predictor.answer.predict import predict

    prediction = predict(workload, timeline=True, samples=options.samples(arguments), progress=output.progress)
    if arguments.picture:
        from predictor.report.svg import draw

        output.write_file(arguments.picture, draw(prediction))

    def document() -> dict[str, Any]:
        from predictor.report.explain import document

        return document(prediction)

    def report(console: Console) -> None:
        from predictor.report import explain

        (explain.report if arguments.details else explain.short)(console, prediction, **asked)

    output.write(arguments, document, report)
    return options.exit_code(prediction)


def _asked(arguments: argparse.Namespace) -> dict[str, int]:
    """The numbers of moments and layers that the user asked for, as arguments of the report."""
    from predictor.report.explain import ALL

    asked = {"moments": arguments.moments and _count("--moments", arguments.moments),
             "layers": ALL if arguments.layers == "all" else arguments.layers and _count("--layers", arguments.layers)}
    return {name: number for name, number in asked.items() if number is not None}


def _count(option: str, text: str) -> int:
    number = numbers.whole(text)
    if number is None or not 1 <= number <= 99_999:
        raise InputError(f'{option} must be a whole number from 1 to 99999, not "{text[:20]}"')
    return number
