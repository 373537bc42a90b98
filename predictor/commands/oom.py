"""Explain an out-of-memory error of PyTorch: who holds the memory, where the job fails, and what would help."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from predictor.commands import options, output
from predictor.common.errors import InputError
from predictor.common.files import read_bytes
from predictor.common.suggestions import file_name

if TYPE_CHECKING:
    from rich.console import Console

    from predictor.oom.explanation import Explanation
    from predictor.oom.recorded import RecordedFailure
    from predictor.oom.reproduction import PredictedJob

STDIN = "-"

EXAMPLES = """examples:
  peakcast oom train.log
  tail -n 200 train.log | peakcast oom
  peakcast oom train.log llava-1.5-7b --sequence-length 2048 --zero-stage 2 --data-parallel-size 8
  peakcast oom train.log --from scripts/v1_5/finetune.sh --data-parallel-size 8 --gpu a100-80gb
  peakcast oom "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …"
  peakcast oom train.log --snapshot snapshot.pickle
  peakcast oom train.log --details
  peakcast oom train.log --json -o why.json -- torchrun --nproc_per_node 8 train.py …

LOG may have anything around the error, and the lines of several ranks ("[rank3]: …", "3: …"). The first message is
explained in full. Without a job's options the answer is from the message alone. With them, the job is predicted on
the GPU of the message (name it with --gpu, for its kernels), the predicted failure is compared with the reported
one, and remedies are judged with the memory that PyTorch had there. MODEL follows LOG; give - for LOG to read standard
input. The answer has at most 40 lines of 100 columns; --details prints all.

exit codes: 0 a message was explained, 2 bad input, or no out-of-memory message in it
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the log, the snapshot, the options of the workload and of the output."""
    parser.add_argument("log", metavar="LOG", nargs="?", default=STDIN,
                        help="file with the error message, or the message itself; default: standard input")
    options.add_workload(parser)
    options.add_from(parser)
    group = parser.add_argument_group("what was recorded")
    group.add_argument("--snapshot", metavar="FILE",
                       help="memory snapshot of the failed job (torch.cuda.memory._dump_snapshot): the blocks in use "
                            "by line of code, and what other allocator settings would change")
    group.add_argument("--device", metavar="N", help="number of the snapshot's device; default: the only one that has "
                       "a history")
    parser.add_argument("--remedies", action="store_true",
                        help="with a job: judge every change that may help, and trace the model for those that need it "
                             "(minutes); without it, those that fit first")
    output.add_output(parser)
    output.add_details(parser, "bytes, all facts about the message, further messages of the log, the predicted memory "
                       "by module, and the snapshot's blocks by line of code")


def run(arguments: argparse.Namespace) -> int:
    """Explains the messages of a log, and predicts the job if it is given."""
    output.check_path(arguments.output, arguments.force)
    if arguments.device is not None and arguments.snapshot is None:
        raise InputError("--device names a device of a snapshot: add --snapshot FILE")
    _check_order(arguments.log, arguments.model)
    name, found = _explained(arguments.log)
    if _has_job(arguments):
        job = _predicted(arguments, found)
    else:
        job = None
        _check_no_keys(arguments)
    snapshot = None if arguments.snapshot is None else _recorded(arguments)
    from predictor.report import oom

    def document() -> dict[str, Any]:
        return oom.document(found, name, job) | {
            "snapshot": snapshot and oom.snapshot_document(snapshot, arguments.snapshot, found[0].message)}

    def report(console: Console) -> None:
        if not arguments.details:
            from predictor.report import oom_summary

            told = None if snapshot is None else (snapshot, file_name(arguments.snapshot))
            return oom_summary.report(console, found, name, job, told)
        oom.report(console, found, name, job, snapshot)
        if snapshot is not None:
            oom.snapshot_report(console, snapshot, file_name(arguments.snapshot), found[0].message)

    output.write(arguments, document, report)
    return 0


def _check_order(log: str, model: str | None) -> None:
    """Raises an InputError with the right order where a model is given before the log, or without one."""
    from predictor.oom.message import contains
    from predictor.oom.pointer import is_log

    if log == STDIN or contains(log) or is_log(log):
        return
    shown = shlex.quote(file_name(log))
    if model is not None and contains(model):
        raise InputError(f'the message comes first: peakcast oom "{model[:20].strip()} …" {shown} …')
    if model is not None and is_log(model):
        raise InputError(f"the log comes first: peakcast oom {shlex.quote(file_name(model))} {shown} …")
    if _is_model(log):
        raise InputError(f"{file_name(log)} is a model, and the log comes first: peakcast oom LOG {shown} … (- in "
                         "place of LOG is standard input)")


def _is_model(name: str) -> bool:
    """Whether this names a model that is known or that lies on disk."""
    from predictor.model import models

    try:
        models.find(name)
    except InputError:
        return False
    return True


def _explained(log: str) -> tuple[str, list[Explanation]]:
    """The name of the log, and its explained messages, those with numbers first.

    Raises:
        InputError: the log cannot be read, or has no out-of-memory message.
    """
    from predictor.oom.explanation import explain
    from predictor.oom.message import contains, elsewhere, find, words

    if log == STDIN:
        name, text = "standard input", _standard_input()
    elif contains(log) or (elsewhere(log) or words(log) or len(log.split()) > 1) and not os.path.exists(log):
        name, text = "the given message", log
    else:
        name, text = file_name(log), _text(log)
    try:
        messages = find(text)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if not messages and (whose := elsewhere(text)):
        raise InputError(f"{name}: this out-of-memory error is {whose}, not of PyTorch on a CUDA GPU: peakcast "
                         "explains only those")
    messages = messages or words(text)
    if not messages:
        raise InputError(f'{name}: has no out-of-memory message (searched: "CUDA out of memory. Tried to allocate …", '
                         '"CUDA error: out of memory" and the like): give the log, or the text, that contains it')
    return name, [explain(message) for message in sorted(messages, key=lambda m: (m.allocated is None, m.line))]


def _text(path: str) -> str:
    from predictor.oom.log import LARGEST_LOG_BYTES

    try:
        data = read_bytes(path, "the log", LARGEST_LOG_BYTES)
    except InputError as error:
        raise InputError(f"{error}; if it is the MODEL, give the log before it, or - for standard input"
                         if "no such file" in str(error) else str(error)) from None
    return data.decode("utf-8-sig", errors="replace")


def _standard_input() -> str:
    from predictor.oom.log import LARGEST_LOG_BYTES

    if sys.stdin is None or sys.stdin.closed:
        raise InputError("standard input is closed: name the LOG that holds the error message")
    if sys.stdin.isatty():
        sys.stderr.write("Paste the error message, then press Ctrl-D:\n")
    data = sys.stdin.buffer.read(LARGEST_LOG_BYTES + 1)
    if len(data) > LARGEST_LOG_BYTES:
        raise InputError(f"standard input: is larger than {LARGEST_LOG_BYTES >> 20} MiB: give its end "
                         "(tail -n 100000)")
    return data.decode("utf-8-sig", errors="replace")


def _has_job(arguments: argparse.Namespace) -> bool:
    """Whether a job is given: a model, a workload, or a framework's configuration."""
    return any(item is not None for item in (arguments.model, arguments.workload, arguments.from_file,
                                             arguments.command))


def _check_no_keys(arguments: argparse.Namespace) -> None:
    """Raises an InputError where options describe a job, but none is given."""
    from predictor.workload.keys import KEYS

    for name in KEYS:
        if getattr(arguments, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} describes the job of the message, and no job is given: add "
                             "its MODEL after the log, or --from FILE")


def _predicted(arguments: argparse.Namespace, found: list[Explanation]) -> PredictedJob:
    """The job's prediction on the GPU of the message, its failure with the memory that PyTorch had there, and remedies.
    """
    workload = options.workload(arguments)
    from predictor.oom.reproduction import predicted_job

    return predicted_job(found, workload, every=arguments.remedies, progress=output.progress)


def _recorded(arguments: argparse.Namespace) -> RecordedFailure:
    from predictor.commands.replay import device_of
    from predictor.oom.recorded import recorded_failure
    from predictor.snapshot import read

    snapshot = read(arguments.snapshot)
    try:
        return recorded_failure(snapshot, device_of(snapshot, arguments.device))
    except InputError as error:
        raise InputError(f"{file_name(arguments.snapshot)}: {error}") from None
