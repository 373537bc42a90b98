"""Standard streams that are closed or full: what is said there is lost, and nothing else changes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from predictor.common.safe_text import printable


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Inside, whatever is written to stderr harms nobody, and no file that is opened takes a standard stream's place.

    A closed stdout stays None for Python: who needs it says so.
    """
    for number in range(3):  # the lowest free number is what a file that is opened next gets
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # for the processes that we start, too
    stream = _heedless(sys.stderr) if sys.stderr else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    with contextlib.redirect_stderr(stream):
        yield


def say(text: str) -> None:
    """One line on stderr, of any text; it is lost where stderr is closed or full."""
    line = printable(" ".join(text.splitlines())) + "\n"
    with contextlib.suppress(OSError, ValueError):  # ValueError: closed in Python
        if sys.stderr is not None:
            stream = _heedless(sys.stderr)
            stream.write(line)
            stream.flush()


class _Heedless(io.TextIOWrapper):
    """A stream that never fails: what cannot be written is lost at once, and is not kept for the interpreter's end."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def _heedless(stream: TextIO) -> TextIO:
    """The process's own stderr as such a stream; one that somebody put in its place is theirs, and stays."""
    if stream is not sys.__stderr__:
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    raw = io.FileIO(stream.fileno(), "w", closefd=False)
    return _Heedless(raw, encoding=stream.encoding, errors=stream.errors, write_through=True)
