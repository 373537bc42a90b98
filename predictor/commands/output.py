"""Where a command's answer goes: the terminal or a file, for people or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.suggestions import named
from predictor.report.console import WIDTH, console


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json``, ``-o`` and ``--force``."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="machine form, and nothing else, on the output")
    group.add_argument("-o", "--output", metavar="FILE", help="write there instead of to the terminal")
    group.add_argument("--force", action="store_true", help="overwrite files that exist")


def check_path(path: str | None, force: bool) -> None:
    """Refuses, before anything is computed, a path that the answer could not be written to.

    Raises:
        InputError: it exists and ``force`` is false, it is no regular file, or its directory is missing
            or not writable.
    """
    if path is None:
        return
    if not path:
        raise InputError('the output is "": name a file')
    name = named(path)
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
    """Refuses two outputs that are one file."""
    if first and second and os.path.realpath(first) == os.path.realpath(second):
        raise InputError(f"{options} name the same file: give two")


def write_file(path: str, text: str) -> None:
    """Writes a whole text file or nothing."""
    write_whole(path, text.encode())


def write(arguments: argparse.Namespace, document: Callable[[], Any], report: Callable[[Any], None]) -> None:
    """Writes the JSON of ``document()``, or the text that ``report(console)`` prints, where the user asked."""
    if arguments.json:
        _emit(arguments.output, json.dumps(document(), indent=2, allow_nan=False) + "\n")
    elif arguments.output:
        import io

        stream = io.StringIO()
        report(console(stream, width=WIDTH))
        _emit(arguments.output, stream.getvalue())
    else:
        if not (sys.stdout.encoding or "utf-8").lower().startswith("utf"):
            sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a mark shows "?"
        report(console(sys.stdout, width=None if sys.stdout.isatty() else WIDTH))


def _emit(path: str | None, text: str) -> None:
    if path:
        write_file(path, text)
    else:
        sys.stdout.write(text)


def progress(shapes):
    """Shapes to trace, with a bar on the terminal while that goes on; nothing where stderr is a file."""
    if not sys.stderr.isatty():
        return shapes
    from rich.console import Console
    from rich.progress import track

    return track(shapes, description="Tracing the model (once; kept for next time)", console=Console(stderr=True),
                 transient=True)


def searching(limit_bytes: int) -> None:
    """The limit that a search has come to, in one line of the terminal that is written again and again."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\rsurvives with {limit_bytes / 2**30:,.2f} GiB for PyTorch … ")
