"""Makes closed or full standard streams harmless: the output is lost, and nothing else changes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from predictor.common.safe_text import printable


@contextlib.contextmanager
def harmless_streams() -> Iterator[None]:
    """A context in which writing to stderr never fails and no newly opened file becomes a standard stream.

    A closed stdout stays None in Python: code that needs it must check it.
    """
    for number in range(3):  # the next file that is opened gets the lowest free descriptor
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # for child processes, too
    stream = _never_failing(sys.stderr) if sys.stderr else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    with contextlib.redirect_stderr(stream):
        yield


def say(text: str) -> None:
    """Prints a text as one line on stderr. The line is lost where stderr is closed or full."""
    line = printable(" ".join(text.splitlines())) + "\n"
    with contextlib.suppress(OSError, ValueError):  # ValueError: the Python stream is closed
        if sys.stderr is not None:
            stream = _never_failing(sys.stderr)
            stream.write(line)
            stream.flush()


class _NeverFailing(io.TextIOWrapper):
    """A stream that never fails. Text that cannot be written is dropped, not kept until the interpreter ends."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def _never_failing(stream: TextIO) -> TextIO:
    """The process's own stderr as a :class:`_NeverFailing`. A replacement that other code installed stays as it is."""
    if stream is not sys.__stderr__:
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    raw = io.FileIO(stream.fileno(), "w", closefd=False)
    return _NeverFailing(raw, encoding=stream.encoding, errors=stream.errors, write_through=True)
