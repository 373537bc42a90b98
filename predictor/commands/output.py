"""Writes a command's result to the terminal or to a file, as a report or as JSON."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.progress import Tell
from predictor.common.suggestions import file_name
from predictor.report.console import WIDTH, console

EVERY = 10
"""Seconds between two lines that tell what long work is doing."""
TRACING = "tracing the model (once; kept for next time): shape {} of {}"


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json``, ``-o`` and ``--force``."""
    group = add_file(parser)
    group.add_argument("--json", action="store_true", help="write JSON, and nothing else")


def add_file(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds ``-o`` and ``--force``."""
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of the terminal")
    group.add_argument("--force", action="store_true", help="overwrite files that exist")
    return group


def add_details(parser: argparse.ArgumentParser, more: str) -> None:
    """Adds ``--details``, without which the answer fits on one screen.

    Args:
        more: what it adds to the answer.
    """
    parser.add_argument("--details", action="store_true", help=f"print everything: {more}")


def check_path(path: str | None, force: bool) -> None:
    """Rejects a path that the result cannot be written to, before anything is computed.

    Raises:
        InputError: it exists and ``force`` is false, it is not a regular file, or its directory is missing
            or not writable.
    """
    if path is None:
        return
    if not path:
        raise InputError('the output is "": name a file')
    name = file_name(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if mode is not None and not stat.S_ISREG(mode):
        raise InputError(f"{name}: is not a regular file: name another")
    if mode is not None and not force:
        raise InputError(f"{name}: exists already: add --force to overwrite it, or name another file")
    folder = Path(path).parent
    if not folder.is_dir():
        raise InputError(f"{name}: its directory does not exist: create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{name}: its directory is not writable")


def check_different(first: str | None, second: str | None, options: str) -> None:
    """Rejects two outputs that are the same file."""
    if first and second and os.path.realpath(first) == os.path.realpath(second):
        raise InputError(f"{options} name the same file: give two")


def write_file(path: str, text: str) -> None:
    """Writes a text file atomically."""
    write_whole(path, text.encode())


def write(arguments: argparse.Namespace, document: Callable[[], Any], report: Callable[[Any], None]) -> None:
    """Writes the result to the terminal or the file that the user named.

    Args:
        document: returns the JSON data, if the user asked for JSON.
        report: prints the report on a console, otherwise.
    """
    if arguments.json:
        emit(arguments.output, json.dumps(document(), indent=2, allow_nan=False) + "\n")
    elif arguments.output or not sys.stdout.isatty():
        text = _as_text(report, "utf-8" if arguments.output else sys.stdout.encoding or "utf-8")
        emit(arguments.output, re.sub(" +$", "", text, flags=re.MULTILINE))  # tables fill their lines
    else:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # "?" for characters that the terminal cannot show
        report(console(sys.stdout, width=None))


def _as_text(report: Callable[[Any], None], encoding: str) -> str:
    """The report in characters that the encoding has; "?" stands for others."""
    data = io.BytesIO()
    with io.TextIOWrapper(data, encoding, errors="replace", newline="\n") as stream:
        report(console(stream, width=WIDTH))
        stream.flush()
        return data.getvalue().decode(encoding)


def emit(path: str | None, text: str) -> None:
    """Writes a text to the file, or to stdout without one."""
    if path:
        write_file(path, text)
    else:
        sys.stdout.write(text)


def bar(items: Sequence[Any], description: str) -> Iterable[Any]:
    """The items, with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, description=description, console=Console(stderr=True), transient=True)


class Told:
    """Tells on stderr what long work is doing and knows already: in plain lines, one every :data:`EVERY` seconds."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, text: Callable[[], str]) -> None:
        """Prints a line, if the last one was long ago."""
        now = time.monotonic()
        if now - self.last >= EVERY:
            self.last = now
            print(text(), file=sys.stderr, flush=True)

    def tracing(self, shapes: Sequence[Any]) -> Iterable[Any]:
        """The shapes to trace, with a progress bar if stderr is a terminal, else with lines."""
        if sys.stderr.isatty():
            yield from bar(shapes, "Tracing the model (once; kept for next time)")
            return
        for number, shape in enumerate(shapes, start=1):
            self(partial(TRACING.format, number, len(shapes)))
            yield shape


def progress(shapes: Sequence[Any]) -> Iterable[Any]:
    """The shapes to trace, shown by themselves: as :meth:`Told.tracing`, with the first line after :data:`EVERY`
    seconds."""
    return Told().tracing(shapes)


def check_svg(path: str | None, option: str) -> None:
    """Rejects a picture's name that does not end in ``.svg``.

    Raises:
        InputError: names the option.
    """
    if path and not path.lower().endswith(".svg"):
        raise InputError(f"{option} writes SVG: name a file that ends in .svg")


def searching() -> Tell:
    """Says what a search tries, as :class:`Told`."""
    told = Told()
    return lambda text: told(lambda: f"searching: {text}")
