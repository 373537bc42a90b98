"""Runs a command on an emulated GPU.

python -m calibrate.emulator run --gpu h100-80gb -- python train.py
"""

import argparse
import os
import sys

from calibrate.emulator.injection import Injection
from calibrate.emulator.job_environment import Machine, environment
from predictor.common.errors import InputError
from predictor.common.gpus import GPUS
from predictor.common.streams import say


def main(argv: list[str] | None = None) -> int:
    """Replaces this process by the command. Returns 2, after a one-line message, if that fails."""
    parser = argparse.ArgumentParser(prog="python -m calibrate.emulator", description=__doc__.splitlines()[0])
    subcommands = parser.add_subparsers(required=True)
    run = subcommands.add_parser("run", help="run a command on an emulated GPU")
    run.add_argument("--gpu", default="h100-80gb", help="GPU model: " + ", ".join(GPUS))
    run.add_argument("--capacity-bytes", type=int, help="memory of each GPU (default: that of the model)")
    run.add_argument("--context-bytes", type=int, default=0, help="memory in use before the job starts")
    run.add_argument("--events", default="immediate",
                     help="when CUDA events complete: immediate, launches:N or synchronization")
    run.add_argument("--devices", type=int, default=1, help="number of GPUs that the command sees")
    run.add_argument("--no-integers", action="store_true", help="do not track values of integer tensors")
    run.add_argument("--shadow-real-gpu", action="store_true", help="hide the real GPU of this machine")
    run.add_argument("--inject", metavar="KEY=VALUE", action="append", default=[],
                     help="change a property of the GPU, to test calibration; keys: calibrate/emulator/injection.py")
    run.add_argument("command", nargs=argparse.REMAINDER, help="the command, after --")
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("a command is missing: run --gpu h100-80gb -- python train.py")
    try:
        machine = Machine(
            gpu=arguments.gpu,
            capacity_bytes=arguments.capacity_bytes,
            context_bytes=arguments.context_bytes,
            events=arguments.events,
            devices=arguments.devices,
            inject=Injection.from_words(arguments.inject),
        )
        changes = environment(
            machine, track_integers=not arguments.no_integers, shadow_real_gpu=arguments.shadow_real_gpu
        )
        os.execvpe(command[0], command, {**os.environ, **changes})
    except InputError as error:
        say(f"peakcast: {error}")
        return 2
    except FileNotFoundError:
        say(f"peakcast: command not found: {command[0]}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
