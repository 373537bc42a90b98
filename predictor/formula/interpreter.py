"""Another environment's interpreter, in which models are traced: its torch and transformers are those that train.

peakcast stays in its own environment; nothing is installed in the other one.
"""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.common import start
from predictor.common.errors import InputError
from predictor.common.suggestions import quoted
from predictor.events.regimes import NotOneRegime
from predictor.formula import formula, installed_versions
from predictor.formula.formula import Formula
from predictor.formula.store import Key
from predictor.model.model_config import ModelConfig

OLDEST_PYTHON = (3, 10)
ASKING_SECONDS = 60
TRACING_SECONDS = 1800
NEEDED = ("torch", "transformers")


@dataclass(frozen=True)
class Interpreter:
    """An interpreter and the releases that are installed in its environment.

    Attributes:
        path: its path, as the user gave it.
        versions: package -> release, of those that peakcast predicts by; those that are missing there are left out.
    """

    path: str
    versions: dict[str, str]

    def trace(self, config: ModelConfig, key: Key) -> Formula:
        """The formula of a key, traced in this interpreter; errors as :func:`predictor.formula.tracing.trace_formula`.
        """
        answer = _ask(self.path, [start.__file__, "predictor.formula.traced_request"], pickle.dumps((config, key)),
                      TRACING_SECONDS)
        if "input_error" in answer:
            raise InputError(f"{answer['input_error']} (traced in {quoted(self.path)[1:-1]})")
        if "not_one_regime" in answer:
            failure = RuntimeError(answer["not_one_regime"]) if answer["failed"] else None
            raise NotOneRegime(answer["not_one_regime"]) from failure
        with tempfile.TemporaryDirectory(prefix="peakcast-") as directory:
            file = Path(directory) / "formula.npz"
            file.write_bytes(base64.b64decode(answer["formula"]))
            return formula.load(file)


CHOSEN: ContextVar[Interpreter | None] = ContextVar("CHOSEN", default=None)
"""The interpreter in which models are traced and jobs are measured; None: the one that runs peakcast."""


def path() -> str:
    """The path of the chosen interpreter, or of the one that runs peakcast."""
    chosen = CHOSEN.get()
    return chosen.path if chosen else sys.executable


@contextmanager
def tracing_in(interpreter: Interpreter) -> Iterator[None]:
    """A block in which models are traced in another interpreter."""
    token = CHOSEN.set(interpreter)
    try:
        yield
    finally:
        CHOSEN.reset(token)


def find(path: str) -> Interpreter:
    """The interpreter at a path.

    Raises:
        InputError: it cannot be run, is too old, or lacks torch or transformers.
    """
    versions = _ask(path, [installed_versions.__file__], b"", ASKING_SECONDS)
    python = versions.pop("python", None)
    if python is None:
        raise InputError(f"--python {quoted(path)}: is no Python interpreter: name that of the environment that trains")
    if tuple(map(int, python.split(".")))[:2] < OLDEST_PYTHON:
        raise InputError(f"--python {quoted(path)}: Python {python}, tracing needs "
                         f"{'.'.join(map(str, OLDEST_PYTHON))} or later")
    for name in NEEDED:
        if name not in versions:
            raise InputError(f"--python {quoted(path)}: {name} is not installed there: name the interpreter of the "
                             "environment that trains")
    return Interpreter(path, versions)


def _ask(path: str, words: list[str], request: bytes, seconds: int) -> dict[str, Any]:
    try:
        done = subprocess.run([path, *words], input=request, capture_output=True, timeout=seconds)
        answer = json.loads(done.stdout)
        if not isinstance(answer, dict):  # another program's output
            raise ValueError
        return answer
    except OSError as error:
        raise InputError(f"--python {quoted(path)}: cannot be run: {error.strerror}: give the path of a Python "
                         "interpreter") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"--python {quoted(path)}: no answer within {seconds} seconds") from None
    except ValueError:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise InputError(f"--python {quoted(path)}: ended with exit code {done.returncode} instead of an answer"
                         + (f": {quoted(lines[-1], 200)[1:-1]}" if lines else "")) from None
