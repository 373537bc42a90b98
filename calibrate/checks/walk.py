"""Follow requests from the command line to the answer: which package calls which, and does anything call upwards?

    python scripts/check.py walk

Each request is answered once under a profiler (``sys.setprofile``). The page lists every call from one package of
predictor to another, once, in the order of the first call. No package imports from one above it, so a call can only go
upwards to a function that an upper package handed down: such calls are listed separately.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from calibrate.checks.outcome import Outcome
from predictor.cli import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "profiles" / "pages" / "walk.md"
LIKE_MAP = "predictor.common.forked"
"""It applies a function to several items, as ``map`` does: the function is called by whoever calls it."""
REQUESTS = (
    "predict llava-1.5-7b --recipe finetune --per-device-train-batch-size 16 --sequence-length 1024 "
    "--data-parallel-size 8 --zero-stage 2 --gpu a100-40gb",
    "predict llava-1.5-7b --recipe pretrain --per-device-train-batch-size 16 --sequence-length 1024 --gpu h100-80gb "
    "--no-gradient-checkpointing",
    "predict llava-1.5-7b --recipe lora --per-device-train-batch-size 64 --sequence-length 2048 --gpu a100-40gb",
    "predict llava-1.5-7b --mode inference --sequence-length 1024 --gpu h100-80gb",
    "explain llava-1.5-7b --sequence-length 1024 --gpu h100-80gb",
)


@dataclass(frozen=True)
class Call:
    """A call from a function of one package to a function of another.

    Attributes:
        is_inner: whether the called function was made inside another one, such as a lambda that is handed down.
    """

    caller: str
    from_function: str
    called: str
    function: str
    is_inner: bool

    def is_up(self, order: Sequence[str]) -> bool:
        """Whether the called package lies above the caller; ``order`` is from top to bottom."""
        return order.index(self.called) < order.index(self.caller)


class Walk:
    """A profiler that collects calls from one package to another, each once, in the order of the first call."""

    def __init__(self) -> None:
        self.calls: dict[Call, None] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        called = package_of(frame)
        # A value that is made from a file is of a type that the caller passes down.
        if event != "call" or called is None or frame.f_code.co_name in ("<module>", "__init__"):
            return
        caller = frame.f_back
        while caller is not None and package_of(caller) is None:
            caller = caller.f_back
        if caller is not None and caller.f_code.co_name != "<module>" and package_of(caller) != called:
            call = Call(str(package_of(caller)), caller.f_code.co_name, called, frame.f_code.co_name,
                        bool(frame.f_code.co_flags & inspect.CO_NESTED))
            self.calls[call] = None


def package_of(frame: FrameType) -> str | None:
    """``answer`` of a function in ``predictor.answer.predict``; None outside, and of what is like ``map``."""
    module = frame.f_globals.get("__name__") or ""
    parts = module.split(".")
    return parts[1] if parts[0] == "predictor" and len(parts) > 1 and module != LIKE_MAP else None


def walked(words: Sequence[str]) -> list[Call]:
    """The calls of one request, whose answer is not shown.

    Raises:
        RuntimeError: the request is not answered.
    """
    walk, said = Walk(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        sys.setprofile(walk)
        try:
            code = main(list(words))
        finally:
            sys.setprofile(None)
    if code not in (0, 1):
        raise RuntimeError(f"{shlex.join(words)}: {said.getvalue()}")
    return list(walk.calls)


def layers(package: str) -> list[str]:
    """The packages of ``predictor`` or ``calibrate`` from top to bottom, as the contract in pyproject.toml has them."""
    text = (ROOT / "pyproject.toml").read_text()
    contract = text.partition(f'containers = ["{package}"]')[2].partition("]\n\n")[0].partition("layers = [")[2]
    return ast.literal_eval(f"[{contract}]")


def jobs(args: Namespace) -> list[list[str]]:
    return [shlex.split(request) for request in REQUESTS]


def measure(jobs: list[list[str]], args: Namespace) -> list[tuple[list[str], list[Call]]]:
    return [(words, walked(words)) for words in jobs]


def table(walks: list[tuple[list[str], list[Call]]], args: Namespace) -> Outcome:
    """The page, and the number of calls upwards to functions that were not made to be handed down."""
    order = layers("predictor")
    first, calls = walks[0]
    lines = ["# The walk of a request", "",
             "Made by `python scripts/check.py walk`. Calls between packages of `predictor/`, each once, in the order "
             "of the first call; operators such as `__getitem__` are left out. Packages from top to bottom: "
             + ", ".join(order) + ".", "",
             "## From the command line to the answer", "", "    peakcast " + shlex.join(first), "",
             "| package | function | calls package | function |", "|---|---|---|---|"]
    lines += [f"| {call.caller} | `{call.from_function}` | {call.called} | `{call.function}` |" for call in calls
              if not call.is_up(order) and not call.function.startswith("__")]
    lines += ["", "## Calls upwards", "",
              "No package imports from one above it, so these are functions that an upper package handed down.",
              "", "| request | calls down | calls up |", "|---|---:|---|"]
    upwards = 0
    for words, made in walks:
        up = [call for call in made if call.is_up(order)]
        upwards += sum(not call.is_inner for call in up)
        told = "; ".join(f"{call.caller} `{call.from_function}` → {call.called} `{call.function}`" for call in up)
        lines.append(f"| `{shlex.join(words)}` | {len(made) - len(up)} | {told or 'none'} |")
    return Outcome({"calls upwards": upwards}, {PAGE: "\n".join(lines) + "\n"}, ("\n".join(lines[-len(walks):]),))
