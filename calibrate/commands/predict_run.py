"""Runs a job on the emulated GPU and answers as a prediction does (``peakcast predict --run``)."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrate.commands.dryrun import Teller
from predictor.commands import options, output
from predictor.common.errors import InputError
from predictor.common.suggestions import quoted
from predictor.workload.keys import KEYS

if TYPE_CHECKING:
    from rich.console import Console

    from calibrate.learn.jobs import Source
    from predictor.events.sizes import Shape
    from predictor.workload.workload import Workload

JUDGED = ("gpu", "capacity_bytes", "allocator_conf", "profile")
"""Keys with which a run is judged afterwards."""
OF_COMMANDS = (*JUDGED, "data_parallel_size", "rank")
"""Keys that apply to a command, which decides all others itself."""
EMULATED_BYTES = 1 << 40
"""Memory of the GPU that the job runs on. The verdict for the user's GPU is simulated with what the run allocated."""
SHELL_SCRIPTS = (".sh", ".bash", ".slurm")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


class Run(NamedTuple):
    """What to run: the keys with which it is judged, the job, and its shape."""

    judged: dict[str, Any]
    source: Source
    shape: Shape


def run(arguments: argparse.Namespace) -> int:
    """Runs, judges and reports. The exit code says whether the job fits."""
    for path in (arguments.output, arguments.snapshot):
        output.check_path(path, arguments.force)
    output.check_different(arguments.snapshot, arguments.output, "--snapshot and -o")
    for name in options.SEARCHES:
        if getattr(arguments, name):
            raise InputError(f"--{name.replace('_', '-')}: --run runs the job once, as it is: leave one of them out")
    from calibrate.emulator.build import find_torch

    find_torch()  # the imports below need it
    from predictor.answer.predict import predict
    from predictor.answer.remedies import with_remedies

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # temporary files go away
    workload = _recorded(arguments)
    tell = output.searching()
    prediction = predict(workload, history=bool(arguments.snapshot), minimum_capacity=arguments.minimum_capacity,
                         tell=tell)
    prediction = with_remedies(prediction, workload, every=arguments.remedies, tell=tell)
    if prediction.history is not None:
        from predictor import snapshot

        snapshot.write(arguments.snapshot, prediction.history)

    def report(console: Console) -> None:
        from predictor.report import summary, table

        (table if arguments.details else summary).report(console, prediction)

    output.write(arguments, prediction.to_json, report)
    return options.exit_code(prediction)


def _recorded(arguments: argparse.Namespace) -> Workload:
    """Runs the job, writes what it allocated to the cache, and returns the workload that stands for it."""
    from calibrate.learn import learn
    from calibrate.learn.jobs import RecordCache
    from calibrate.learn.shapes import Plan
    from predictor.formula import learned
    from predictor.workload.workload import Workload

    command = _command(arguments)
    judged, source, shape = _of_command(arguments, command) if command else _of_workload(arguments)
    formula, _ = learn.learn(source, Plan((shape,)))
    formula.provenance["run"] = True
    path = RecordCache(source).directory.with_suffix(learned.SUFFIX)
    learned.save(str(path), formula)
    learn.clear(source)
    return Workload.from_mapping(learned.fill_recorded_keys({"model": str(path), **judged}))


def _command(arguments: argparse.Namespace) -> list[str]:
    """The words of the command to run; empty for a workload."""
    if arguments.command is not None:
        if not arguments.command:
            raise InputError("a command is missing after --: peakcast predict --run -- python train.py")
        return list(arguments.command)
    file = arguments.from_file
    if file is None:
        return []
    if file.endswith(SHELL_SCRIPTS):
        return ["bash", file]
    raise InputError(f"{quoted(file, 80)} does not say which program trains with it: give the command itself, such as "
                     f"peakcast predict --run -- llamafactory-cli train {shlex.quote(file)}")


def _of_command(arguments: argparse.Namespace, command: list[str]) -> Run:
    """A command. Its shape, whatever it is, is that of one sample without tokens."""
    from calibrate.dryrun.dryrun import Streams
    from calibrate.learn.jobs import ScriptSource
    from predictor.common.gpus import DEFAULT
    from predictor.events.sizes import Shape

    for name in (*KEYS, "workload"):
        if getattr(arguments, name, None) is not None and name not in OF_COMMANDS:
            called = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
            raise InputError(f"{called}: the command decides that itself: leave it out")
    given = options.parsed(arguments, OF_COMMANDS)
    gpus, rank = given.pop("data_parallel_size", None), given.pop("rank", "worst")
    by = "--data-parallel-size says" if gpus else "the command says"
    gpus = gpus or _processes(arguments, command)
    rank = 0 if rank == "worst" else rank
    if rank >= (gpus or 1):
        raise InputError(f"--rank {rank}: {by} that there are {gpus or 1}: ranks begin at 0")
    return Run(given, ScriptSource(
        tuple(_in_environment(command)), given.get("gpu") or DEFAULT, EMULATED_BYTES, gpus or 1,
        pretends=gpus is not None, rank=rank,
        streams=Streams(sys.stderr.fileno(), progress=Teller().tell if sys.stderr.isatty() else None)), Shape(1, 0, 0))


def _processes(arguments: argparse.Namespace, command: Sequence[str]) -> int | None:
    """The number of ranks that a command's launcher starts, if there are several; one process then acts as one of them.

    Raises:
        InputError: the number cannot be read from the command.
    """
    from predictor.readers import ranks

    found = ranks.started(arguments.from_file, command)
    return found if found and found > 1 else None


def _in_environment(command: Sequence[str]) -> list[str]:
    """A command whose leading assignments are given to ``env``. The emulated machine has one GPU: none is chosen."""
    start = next((at for at, word in enumerate(command) if not ASSIGNMENT.fullmatch(word)), len(command))
    assigned = [word for word in command[:start] if not word.startswith("CUDA_VISIBLE_DEVICES=")]
    return [*(["env", *assigned] if assigned else []), *command[start:]]


def _of_workload(arguments: argparse.Namespace) -> Run:
    """A workload in the reference loop."""
    from calibrate.learn.jobs import WorkloadSource
    from calibrate.records.record import MeasuredOn
    from predictor.events.sizes import Shape

    user = options.workload(arguments)
    if user.mode == "inference":
        raise InputError("mode inference: --run runs a training: use peakcast measure")
    judged = {name: value for name in JUDGED if (value := getattr(user, name)) is not None}
    source = WorkloadSource.of(user.replace(capacity_bytes=EMULATED_BYTES), MeasuredOn.EMULATED,
                               ["peakcast", *sys.argv[1:]])
    batch = source.workload.per_device_train_batch_size
    shape = Shape(batch, source.workload.sequence_length or 0, (source.workload.images_per_sample or 0) * batch)
    return Run(judged, source, shape)
