"""Failures of transformers and of its tokenizers, which are written in Rust and may panic over a damaged file."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

STDERR = 2
"""The file descriptor that Rust prints a panic on."""
LONGEST = 200
"""Characters of a reason that are shown."""


class Failed(Exception):
    """A tokenizer or processor failed. The message says how, in a few words."""


@contextlib.contextmanager
def failures(*others: type[Exception]) -> Iterator[None]:
    """A context in which whatever a tokenizer or processor raises becomes :class:`Failed`, and no panic is printed.

    A panic raises an exception that is no ``Exception`` (pyo3, src/panic.rs), after Rust has printed it on the file
    descriptor of stderr, with a backtrace where RUST_BACKTRACE asks for one. That text is dropped. What is printed
    where nothing fails is shown at the end of the context.

    Args:
        others: exceptions that pass as they are.

    Raises:
        Failed: something in the context failed.
    """
    try:
        with _held_back():
            yield
    except others:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # an interrupt
        reason = " ".join(str(error).split())[:LONGEST]
        raise Failed(f"{type(error).__name__}: {reason}") from None


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Keeps what is printed on the file descriptor of stderr, and shows it at the end unless there is an exception."""
    with contextlib.ExitStack() as stack:
        try:
            kept = stack.enter_context(tempfile.TemporaryFile())
            own = os.dup(STDERR)
            stack.callback(os.close, own)
        except OSError:  # no room for a file, or no stderr: then a panic is printed
            yield
            return
        _flush()
        os.dup2(kept.fileno(), STDERR)
        try:
            yield
        finally:
            _flush()
            os.dup2(own, STDERR)
        kept.seek(0)
        with contextlib.suppress(OSError):
            while piece := kept.read(1 << 16):
                os.write(STDERR, piece)


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError):
        if sys.__stderr__ is not None:
            sys.__stderr__.flush()
