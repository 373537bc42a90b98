"""Measure a workload: three real training steps on a real or an emulated GPU, shown beside the prediction."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from predictor.commands import options, output
from predictor.common.errors import InputError

EXAMPLES = """examples:
  peakcast measure llava-1.5-7b --per-device-train-batch-size 16 --sequence-length 1024 \\
      --data-parallel-size 8 --zero-stage 2 --rank 7 --device emulated --gpu h100-80gb
  peakcast measure --workload job.yaml --json -o measurement.json
  peakcast measure --workload job.yaml --snapshot history.pickle

One process runs one rank of --data-parallel-size; the other ranks need not exist. Rank "worst" (the
default) is the rank with the highest predicted peak. Each step runs forward, keeps only the loss of the
model's output, runs backward and the optimizer, and sets the gradients to None; the inputs stay.
Under torchrun all ranks exist, and each writes a record: put {rank} into the name after -o.

exit codes: 0 three steps ran, 1 the job ran out of GPU memory, 2 bad input or environment
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the workload, the device and the output."""
    options.add_workload(parser)
    options.add_from(parser)
    group = parser.add_argument_group("where to run")
    group.add_argument("--device", choices=("cuda", "emulated"), help="default: cuda if this machine has a GPU")
    group.add_argument("--events", default="immediate", metavar="WHEN",
                       help="when events complete on the emulated GPU: immediate, launches:N or synchronization; "
                            "default: immediate")
    group.add_argument("--snapshot", metavar="FILE",
                       help="also write the memory history to this file, for pytorch.org/memory_viz; each entry's "
                            "metadata names moment, step, module and operator")
    options.add_python(group, "interpreter of another environment: the job runs there, with its packages, and is "
                              "predicted by them")
    group.add_argument("--verbose", action="store_true", help="show what the job prints")
    output.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measures and reports; the exit code says whether the job ran out of memory."""
    _name_by_rank(arguments)
    for path in (arguments.output, arguments.snapshot):
        output.check_path(path, arguments.force)
    if arguments.snapshot and arguments.snapshot == arguments.output:
        raise InputError("-o and --snapshot name the same file: name two")
    workload = options.workload(arguments)
    from calibrate.measure.measure import measure
    from calibrate.records.record import MeasuredOn

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # temporary files go away
    device = {"cuda": MeasuredOn.DEVICE, "emulated": MeasuredOn.EMULATED}.get(arguments.device)
    record = measure(workload, device=device, snapshot=arguments.snapshot, events=arguments.events,
                     verbose=arguments.verbose, command=["peakcast", *sys.argv[1:]])

    def report(console) -> None:
        from calibrate.report.measurement import report

        report(console, record)

    output.write(arguments, record.to_json, report)
    return 1 if record.job.out_of_memory else 0


def _name_by_rank(arguments: argparse.Namespace) -> None:
    """Under torchrun, replaces ``{rank}`` in file names by this process's rank."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    for name in ("output", "snapshot"):
        path = getattr(arguments, name)
        if path and "{rank}" not in path:
            raise InputError(f"{path}: every rank would write it: put {{rank}} into its name")
        setattr(arguments, name, path and path.replace("{rank}", os.environ["RANK"]))
