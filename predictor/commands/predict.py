"""Predict the peak GPU memory of a training job: how much, when, of what, and whether it fits."""

from __future__ import annotations

import argparse

from predictor.commands import options, output

EXAMPLES = """examples:
  peakcast predict llava-1.5-7b --recipe finetune --per-device-train-batch-size 16 \\
      --sequence-length 1024 --data-parallel-size 8 --zero-stage 2 --gpu h100-80gb
  peakcast predict llava-1.5-7b --sequence-length 2048 --deepspeed zero2.json --data-parallel-size 4
  peakcast predict --workload job.yaml --capacity-bytes 80GiB --json -o prediction.json

exit codes: 0 it fits or no GPU was named, 1 it does not fit or is uncertain, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the workload's options and the output's."""
    options.add_workload(parser)
    output.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Predicts and reports; the exit code says whether it fits."""
    output.check_path(arguments.output, arguments.force)
    workload = options.workload(arguments)
    from predictor.pipeline import predict  # numpy takes a while; a mistake should be told at once

    prediction = predict(workload, progress=output.progress)

    def report(console) -> None:
        from predictor.report.table import report

        report(console, prediction)

    output.write(arguments, prediction.to_json, report)
    return options.exit_code(prediction)
