"""Runs a module in a separate process on a campaign's device and returns its printed answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from calibrate import child
from calibrate.dryrun.hooks import SETTING as DRY_RUN
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.records.record import MeasuredOn
from predictor.common.errors import InputError
from predictor.common.suggestions import quoted

ANSWER = "PEAKCAST "
"""Prefix of the output line that holds the answer. Libraries print other lines."""


def run_module(module: str, where: MeasuringDevice, *words: str, variables: Mapping[str, str] | None = None,
               capacity_bytes: int | None = None) -> dict[str, Any]:
    """The answer of ``python -m module words`` on that device.

    Builds the emulated GPU first, so that a mistake is reported before anything runs.

    Args:
        variables: further environment variables.
        capacity_bytes: memory of an emulated GPU; None for that of the real one.

    Raises:
        InputError: there is no device, or the process fails.
    """
    changes: dict[str, str] = {}
    if where.device is MeasuredOn.EMULATED:
        from calibrate import emulator

        machine = emulator.Machine(gpu=where.gpu, events=where.events, inject=where.inject or emulator.Injection(),
                                   capacity_bytes=capacity_bytes)
        changes = emulator.environment(machine, shadow_real_gpu=True)
    environment = {**os.environ, **changes, **(variables or {})}
    process = subprocess.run(**child.python(module, *words, variables=environment), capture_output=True, text=True)
    for line in process.stdout.splitlines():
        if line.startswith(ANSWER):
            document = json.loads(line.removeprefix(ANSWER))
            if "input_error" in document:
                raise InputError(document["input_error"])
            return document
    last_line = (process.stderr.strip().splitlines() or ["no output on stderr"])[-1]
    raise InputError(f"the GPU could not be queried: {quoted(last_line, 300)[1:-1]}")


def run_task(module: str, where: MeasuringDevice, task: Any, **options: Any) -> dict[str, Any]:
    """The answer of a module that reads a task from a JSON file, its argument. Otherwise as :func:`run_module`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(task, file)
        file.flush()
        return run_module(module, where, file.name, **options)


def print_answer(question: Callable[[], Mapping[str, Any]]) -> NoReturn:
    """Prints the answer and ends the process at once, because libraries hang while Python shuts down.

    A program of ``peakcast learn`` or ``dryrun`` ends with its exit handlers instead: one of them writes its history.
    """
    from calibrate.job import device

    try:
        device.require()
        reply = question()
    except InputError as error:
        reply = {"input_error": str(error)}
    print(ANSWER + json.dumps(reply), flush=True)
    if DRY_RUN in os.environ:
        sys.exit(0)
    os._exit(0)
