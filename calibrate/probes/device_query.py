"""A question to a process of its own on a campaign's device: a module that is run there and prints its answer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from calibrate import child
from calibrate.measure.device_choice import Where
from calibrate.records.record import MeasuredOn
from predictor.common.errors import InputError
from predictor.common.suggestions import show

ANSWER = "PEAKCAST "
"""Begins the line that is the answer; libraries print others."""


def ask(module: str, where: Where, *words: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What ``python -m module words`` answers there; builds the emulated GPU, so that a mistake is told before anything
    runs.

    Args:
        variables: environment variables besides.

    Raises:
        InputError: no device, or a process that cannot tell.
    """
    changes: dict[str, str] = {}
    if where.device is MeasuredOn.EMULATED:
        from calibrate import emulator

        machine = emulator.Machine(gpu=where.gpu, events=where.events, inject=where.inject or emulator.Injection())
        changes = emulator.environment(machine, shadow_real_gpu=True)
    environment = {**os.environ, **changes, **(variables or {})}
    process = subprocess.run(**child.python(module, *words, variables=environment), capture_output=True, text=True)
    for line in process.stdout.splitlines():
        if line.startswith(ANSWER):
            found = json.loads(line.removeprefix(ANSWER))
            if "input_error" in found:
                raise InputError(found["input_error"])
            return found
    last = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
    raise InputError(f"the GPU could not be looked at: {show(last, 300)[1:-1]}")


def answer(question: Callable[[], Mapping[str, Any]]) -> NoReturn:
    """What the process does. Ends as a job does: libraries hang in the interpreter's last rites."""
    from calibrate.job import device

    try:
        device.require()
        found = question()
    except InputError as error:
        found = {"input_error": str(error)}
    print(ANSWER + json.dumps(found), flush=True)
    os._exit(0)
