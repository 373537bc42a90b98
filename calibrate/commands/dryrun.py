"""Run your own training script, unchanged, on an emulated GPU: its peaks, and the code that made them."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

from predictor.commands import options, output
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name, quoted
from predictor.common.value_types import Invalid, Size, Whole

if TYPE_CHECKING:
    from calibrate.dryrun.progress import Progress

TELL_SECONDS = 5.0
EXAMPLES = """examples:
  peakcast dryrun -- python train.py --batch-size 8
  peakcast dryrun --gpu a100-40gb --optimizer-steps 3 -- python train.py
  peakcast dryrun --world-size 8 --rank 7 --optimizer-steps 3 -- python train.py --deepspeed zero2.json
  peakcast dryrun --json -o peak.json -- python train.py

The report names the moment, the operator, the module and the line of code of the peak, and divides its
bytes into factors as predict does: parameters, gradients, optimizer states, activations … Bytes of no
known purpose are unattributed. Of several processes, it is of the rank with the highest peak. Of a
failed allocation it says who held the memory, what would have been enough, and whether the same
allocations would have succeeded with expandable segments.

The script runs in full, with its own files, unless --optimizer-steps ends it: three are enough for
the peak of a training loop. Nothing is computed on the GPU: floating-point values read back as zero.
Code that torch.compile generates for the GPU is rejected: set TORCH_COMPILE_DISABLE=1 to run without it.

exit codes: 0 the script ran, 1 it ran out of GPU memory, 2 it failed otherwise, or bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the GPU, the ranks and the output, and the command."""
    parser.usage = "peakcast dryrun [options] -- COMMAND [ARGUMENT ...]"
    group = parser.add_argument_group("where to run")
    group.add_argument("--gpu", default="h100-80gb", metavar="GPU", help="such as a100-40gb, l40s; default: h100-80gb")
    group.add_argument("--capacity-bytes", "--capacity", metavar="SIZE", help="memory of the GPU, such as 40GiB; "
                                                                              "overrides the GPU's own")
    group.add_argument("--world-size", metavar="N",
                       help="world size that torch.distributed reports; only this process exists, as --rank; "
                            "default: the processes that the command starts")
    group.add_argument("--rank", default="0", metavar="R", help="default: 0")
    group.add_argument("--events", default="immediate", metavar="WHEN",
                       help="when events complete: immediate, launches:N or synchronization; default: immediate")
    options.add_python(group, "interpreter of another environment, whose programs the command runs: python, torchrun, "
                              "accelerate, deepspeed; it has peakcast's emulated GPU")
    group.add_argument("--optimizer-steps", metavar="N", help="end the script after N optimizer steps")
    output.add_output(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and reports; the exit code says whether it ran out of memory."""
    output.check_path(arguments.output, arguments.force)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    command = _as_given(command)
    if not command:
        raise InputError("a command is missing: peakcast dryrun [options] -- python train.py")
    if command[0].endswith(".py") and os.path.isfile(command[0]) and shutil.which(command[0]) is None:
        raise InputError(f"{file_name(command[0])}: is a Python script: put its command after --: peakcast dryrun -- "
                         f"python {shlex.quote(command[0])}{' …' if command[1:] else ''}")
    if arguments.python is not None:  # its programs are found first, by the command and by scripts that it starts
        os.environ["PATH"] = os.pathsep.join([_directory(arguments.python), os.environ.get("PATH", "")])
    settings = {
        "world_size": _value("--world-size", Whole(1, 65_536), arguments.world_size),
        "rank": _value("--rank", Whole(0, 65_535), arguments.rank),
        "capacity_bytes": _value("--capacity-bytes", Size(), arguments.capacity_bytes),
        "optimizer_steps": _value("--optimizer-steps", Whole(1, 1 << 20), arguments.optimizer_steps),
    }
    from calibrate.dryrun.dryrun import Streams, dryrun
    from calibrate.emulator import Machine
    from predictor.common.json_dataclasses import to_plain

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # temporary files go away
    quiet = arguments.json and not arguments.output  # then stdout is only for the JSON
    machine = Machine(gpu=arguments.gpu, capacity_bytes=settings.pop("capacity_bytes"), events=arguments.events)
    streams = Streams(output=sys.stderr.fileno() if quiet else None,
                      progress=Teller().tell if sys.stderr.isatty() else None)
    result = dryrun(command, machine, streams=streams, **settings)

    def report(console) -> None:
        from calibrate.report.dryrun import report

        report(console, result)

    output.write(arguments, lambda: to_plain(result), report)
    if result.out_of_memory:
        return 1
    if result.exit_code:
        from calibrate.report.dryrun import ending

        raise InputError(f"{ending(result)}: its own message is above")
    return 0


def _directory(python: str) -> str:
    """The directory of an interpreter.

    Raises:
        InputError: there is none.
    """
    if shutil.which(python) is None:
        raise InputError(f"--python {quoted(python)}: cannot be run: give the path of a Python interpreter")
    return os.path.dirname(os.path.abspath(python))


class Teller:
    """Writes the state of the script to stderr, a line each: when its phase changes, and every few seconds."""

    def __init__(self) -> None:
        self._last: Progress | None = None
        self._told = 0.0

    def tell(self, progress: Progress) -> None:
        """Writes the state if it is news."""
        from calibrate.report.dryrun import progress_text

        is_new_phase = self._last is None or progress.phase is not self._last.phase
        if is_new_phase or progress != self._last and time.monotonic() - self._told >= TELL_SECONDS:
            self._last, self._told = progress, time.monotonic()
            print(f"peakcast: {progress_text(progress)}", file=sys.stderr, flush=True)


def _as_given(command: list[str]) -> list[str]:
    """The command as the user typed it: the command line's parser replaced underscores of options by hyphens."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    is_same = [word.replace("_", "-") for word in words] == [word.replace("_", "-") for word in command]
    return words if is_same else command


def _value(option: str, kind, text: str | None):
    if text is None:
        return None
    try:
        return kind.from_text(text)
    except Invalid as error:
        raise InputError(f"{option} {error}") from None
