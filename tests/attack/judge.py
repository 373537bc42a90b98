"""Judges one input: it is read or refused in one line, within bounds of time and memory, and leaves nothing behind."""

from __future__ import annotations

import os
import resource
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from predictor.common.errors import InputError
from predictor.common.safe_text import printable
from predictor.formula import store
from tests.attack.inputs import Input
from tests.attack.targets import TARGETS, Broken
from tests.predictor.bounds import TookForEver, bounded_time

MOST_SECONDS = 5.0
"""Time of the processor that an input may take, in this process and those that it started: a busy machine does not count."""
MOST_CLOCK_SECONDS = 15.0
"""Time of the clock that an input may take, waiting included. A busy machine counts here, so an input that takes longer is read once more."""
MOST_BYTES = 500_000_000
"""Resident memory of the whole process that an input may lead to, that of the interpreter and its imports included, or of a process that it started.

Of inputs that transformers reads, only what the input adds counts: the import of transformers and torch takes some 700 MB
and 5 s, which no input can change. The process that renders chat templates has a limit of its own."""
MEMORY = "memory"
"""Beginning of the problem of an input that took more."""
HANGS_SECONDS = 60
"""After so many seconds of the clock an input is ended, whatever it waits for."""
UNTRACED = (store.NO_FORMULA, "needs torch")
"""Words of the refusals for want of a formula."""
LONGEST_LINE = 3_000
"""Characters of an error."""
TOLD = 1_500
"""Characters of a traceback that a finding keeps."""


@dataclass(frozen=True)
class Judgement:
    """What an input led to.

    Attributes:
        problem: what is wrong, in words; None if all is well.
        refused: whether the input was refused.
        untraced: whether it was refused only because its model has no formula yet, and nothing is traced here.
        seconds: how long it took the processor.
        peak_bytes: the highest resident memory meanwhile of this process, or of one that it started, not their sum; 0 where the system does not tell.
        clock_seconds: how long it took by the clock.
    """

    problem: str | None
    refused: bool
    seconds: float
    peak_bytes: int
    untraced: bool = False
    clock_seconds: float = 0.0


def judge(given: Input, directory: Path, tokenized: bool = False) -> Judgement:
    """Judges an input in an empty directory, which is empty again afterwards.

    Args:
        tokenized: whether transformers reads it, so that what this process had before does not count.
    """
    found = _once(given, directory, tokenized)
    if found.problem is None and found.seconds <= MOST_SECONDS and found.clock_seconds > MOST_CLOCK_SECONDS:
        found = _once(given, directory, tokenized)
    if found.problem is None and found.seconds > MOST_SECONDS:
        return replace(found, problem=f"slow: {found.seconds:.1f} s")
    if found.problem is None and found.clock_seconds > MOST_CLOCK_SECONDS:
        return replace(found, problem=f"slow by the clock: {found.clock_seconds:.1f} s, {found.seconds:.1f} s of the processor")
    if found.problem is None and found.peak_bytes > MOST_BYTES:
        return replace(found, problem=f"{MEMORY}: {found.peak_bytes / 1e6:.0f} MB")
    return found


def _once(given: Input, directory: Path, tokenized: bool) -> Judgement:
    given.write(directory)
    before = Path.cwd()
    os.chdir(directory)
    reset_peak()
    own, children = peak_bytes() if tokenized else 0, _children_bytes()
    problem, refused, untraced, start, begun = None, False, False, _processor_seconds(), time.monotonic()
    try:
        with bounded_time(HANGS_SECONDS):
            TARGETS[given.target](*given.words)
    except InputError as error:
        refused, problem = True, wrong_line(str(error))
        untraced = any(words in str(error) for words in UNTRACED)
    except Broken as error:
        problem = f"broken: {error}"
    except TookForEver:
        problem = f"hangs: {traceback.format_exc()[-TOLD:]}"
    except BaseException as error:  # SystemExit, too
        problem = f"traceback: {type(error).__name__}: {traceback.format_exc()[-TOLD:]}"
    finally:
        seconds, clock_seconds = _processor_seconds() - start, time.monotonic() - begun
        os.chdir(before)
    left = _left(given, directory)
    problem = problem or left
    highest = _children_bytes()
    return Judgement(problem, refused, seconds, max(peak_bytes(), highest if highest > children else 0) - own, untraced, clock_seconds)


def _processor_seconds() -> float:
    """Time that the processor has worked for this process, and for those that it started and that have ended."""
    return sum(os.times()[:4])


def _children_bytes() -> int:
    """The highest resident memory of any process that this one started and that has ended. It never falls, so that of a
    child is known only if no earlier one had as much: more than the bound is noticed all the same."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10


def wrong_line(text: str) -> str | None:
    if str(store.shipped_directory()) in text:
        return f"a shipped formula is refused: {text[:300]}"
    if printable(text) != text:
        return f"error of several lines, or not printable: {text[:300]!r}"
    return f"error of {len(text):,} characters: {text[:200]}" if len(text) > LONGEST_LINE else None


def _left(given: Input, directory: Path) -> str | None:
    """Removes the input's files; the names of others, which should not be there."""
    for name in given.files:
        (directory / name).unlink(missing_ok=True)
    left = sorted(path.name for path in directory.iterdir())
    for name in left:
        os.rename(directory / name, directory.parent / f"left-{os.getpid()}-{time.monotonic_ns()}")
    return f"left files behind: {', '.join(left)}" if left else None


def reset_peak() -> None:
    """Makes the process's highest resident memory that of now (Linux, proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_bytes() -> int:
    """The highest resident memory of this process since :func:`reset_peak`; 0 where the system does not tell."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(text.partition("VmHWM:")[2].split()[0]) << 10
