"""Reads the user's YAML and JSON files, and writes files atomically. Every problem becomes a one-line InputError.

Every file from outside is opened by :func:`open_bounded` and read up to a limit. The limit applies to the bytes that
were read, not to the size that the file system reports: pipes and devices have none.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import select
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import file_name, quoted

LARGEST_FILE_BYTES = 4 << 20
CHUNK_BYTES = 1 << 20
WRITER_COMES_SECONDS = 0.3
"""A pipe counts as having no writer if nobody opens it for writing within this time."""
SILENT_SECONDS = 30.0
"""Longest wait for a pipe's writer to continue."""
OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))
"""How files from outside are opened. Of these flags Windows has only the last, and no other system has that one."""
PIPES_CAN_BE_READ = hasattr(select, "poll")
"""False on Windows, which cannot wait for a pipe."""


def read_mapping(path: str | os.PathLike[str], what: str, strict_for: str = "") -> dict[Any, Any]:
    """The mapping in a ``.json`` file, or in a YAML file of any other name.

    Args:
        path: absolute, or relative to the current directory.
        what: the purpose of the file, for messages: "the DeepSpeed config".
        strict_for: name of a program that accepts only plain JSON. If given, the file is read as JSON, whatever its
            name, and comments and trailing commas are errors.

    Raises:
        InputError: no such file, not readable, not UTF-8, a syntax error, a repeated key, or not a mapping.
    """
    name = file_name(path)
    text = read_text(path, what)
    value = parse_json(text, name, strict_for) if strict_for or name.lower().endswith(".json") else \
        parse_yaml(text, name)
    if not isinstance(value, dict):
        raise InputError(f"{name}: holds {_type_text(value)}, not a mapping of keys to values")
    return value


def read_text(path: str | os.PathLike[str], what: str, most_bytes: int = LARGEST_FILE_BYTES) -> str:
    """The text of a file of at most ``most_bytes`` bytes.

    Raises:
        InputError: no such file, not readable, too large, or not UTF-8.
    """
    data = read_bytes(path, what, most_bytes)
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()  # as open() does: line ends become \n
    except UnicodeDecodeError:
        raise InputError(f"{file_name(path)}: is not a text file in UTF-8") from None


def lines(text: str) -> Iterator[str]:
    """Yields the lines of a text. A list of them, or a stream of the text, would take several times its memory."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def read_bytes(path: str | os.PathLike[str], what: str, most_bytes: int = LARGEST_FILE_BYTES) -> bytes:
    """The content of a file of at most ``most_bytes`` bytes. It reads at most one byte more.

    Raises:
        InputError: no such file, not readable, or too large.
    """
    with opened(path, what) as stream:
        data = bytearray()
        while len(data) <= most_bytes and (chunk := stream.read(min(CHUNK_BYTES, most_bytes + 1 - len(data)))):
            data += chunk
    if len(data) > most_bytes:
        raise InputError(f"{file_name(path)}: is larger than {most_bytes >> 20} MiB: this is not {what}")
    return bytes(data)


@contextmanager
def opened(path: str | os.PathLike[str], what: str, *, pipes: bool = True) -> Iterator[io.BufferedReader]:
    """A file from outside, opened by :func:`open_bounded`.

    Raises:
        InputError: no such file, or not readable.
    """
    name = file_name(path)
    try:
        with open_bounded(path, pipes=pipes) as stream:
            yield stream
    except FileNotFoundError:
        raise InputError(f"{name}: no such file: check the path of {what} (looked in the current directory)") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a directory: name the file that holds {what}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot be read: {reason}") from None


class NotAFile(OSError):
    """The path is not a regular file (nor a pipe, where pipes are accepted)."""


@contextmanager
def open_bounded(path: str | os.PathLike[str], *, pipes: bool = True) -> Iterator[io.BufferedReader]:
    """Opens a file from outside for reading: a regular file or, if ``pipes``, a pipe that has a writer.

    It never waits for ever: a pipe without a writer is rejected, and so is any device.

    Raises:
        OSError: the file cannot be opened, is neither a regular file nor an accepted pipe, or the pipe stays silent.
    """
    pipes = pipes and PIPES_CAN_BE_READ
    handle = os.open(path, OPEN_FLAGS)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode) and not (pipes and stat.S_ISFIFO(mode)):
            raise NotAFile(errno.EINVAL, f"it is no regular file{' and no pipe' if pipes else ''}")
        raw: io.RawIOBase = _Pipe(handle) if stat.S_ISFIFO(mode) else open(handle, "rb", buffering=0, closefd=False)  # noqa: SIM115
        yield io.BufferedReader(raw)
    finally:
        os.close(handle)


class _Pipe(io.RawIOBase):
    """The reading end of a non-blocking pipe. It waits for the writer, up to a time limit."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._events = select.poll()
        self._events.register(handle, select.POLLIN)
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        for seconds in (WRITER_COMES_SECONDS, SILENT_SECONDS):
            ready = self._events.poll(seconds * 1000)
            try:
                count = os.readv(self._handle, [buffer])
            except BlockingIOError:  # the pipe has a writer, which has not written yet
                continue
            if not count and not ready and not self._begun:
                raise OSError(errno.EPIPE, "it is a pipe, and nobody writes to it")
            self._begun = True
            return count
        raise OSError(errno.ETIMEDOUT, f"it is a pipe, and nothing came out of it for {SILENT_SECONDS:.0f} seconds")


def write_whole(path: str, data: bytes) -> None:
    """Writes a file atomically: to a temporary file in the same directory, then renamed to ``path``.

    Raises:
        InputError: the file cannot be written there.
    """
    write_together({path: data})


def write_together(files: Mapping[str, bytes]) -> None:
    """Writes files that belong together, each atomically: no file gets its name before all are written.

    A full disk therefore leaves none of them. Only a process that is killed between two renames leaves some.

    Args:
        files: path of each file -> its content.

    Raises:
        InputError: a file cannot be written there. Files that were there before are as they were.
    """
    temporary: dict[str, str] = {}
    path = ""
    try:
        for path, data in files.items():
            handle, temporary[path] = tempfile.mkstemp(dir=Path(path).parent, prefix=".peakcast-")
            with open(handle, "wb") as stream:
                stream.write(data)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary[path], 0o666 & ~mask)  # mkstemp makes files that only their owner can read
            if os.path.isdir(path):  # the only rename that fails where a temporary file could be made
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        for path in files:
            os.replace(temporary[path], path)
            del temporary[path]
    except OSError as error:
        raise InputError(f"{file_name(path)}: cannot be written: {error.strerror}") from None
    finally:
        for name in temporary.values():
            with suppress(OSError):
                os.unlink(name)


def parse_json(text: str, name: str, strict_for: str = "") -> Any:
    """Parses JSON. Comments and trailing commas are accepted, as by DeepSpeed's reader (hjson), unless ``strict_for``.

    Args:
        text: the content of the file.
        name: the file's name, for messages.
        strict_for: name of the program that accepts only plain JSON; empty if none does.

    Raises:
        InputError: a syntax error, a repeated key, or a number or nesting that is too long.
    """
    try:
        return _plain_json(text, name)
    except json.JSONDecodeError as error:
        failure = error
    if not strict_for and len(text) <= LARGEST_FILE_BYTES:  # no file that somebody wrote by hand has more
        try:
            return _plain_json(_without_comments(text), name)
        except json.JSONDecodeError as error:
            failure = error
    raise InputError(f"{name}: not valid JSON at line {failure.lineno}, column {failure.colno}: {failure.msg}" + (
        f" ({strict_for} takes no comments and trailing commas)" if strict_for else ""))


def _plain_json(text: str, name: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _no_repeats(pairs, name))
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError):  # an integer with thousands of digits, or thousands of brackets
        raise InputError(f"{name}: not valid JSON: a number or the nesting is too long") from None


def parse_yaml(text: str, name: str) -> Any:
    """Parses YAML 1.1 as PyYAML does, except that ``5e8`` is a number, as in JSON. The expanded size is limited.

    Raises:
        InputError: a syntax error, a repeated key, or a document beyond the limits of ``bounded_yaml``.
    """
    from yaml import MarkedYAMLError  # imported late: most commands read no YAML

    from predictor.common import bounded_yaml

    try:
        return bounded_yaml.load(text, lambda keys: _no_repeats([(key, None) for key in keys], name))
    except bounded_yaml.TooMuch as error:
        raise InputError(f"{name}: {error}") from None
    except InputError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{name}: not valid YAML{where}: {quoted(error.problem or 'syntax error')[1:-1]}") from None
    except Exception as error:  # PyYAML's constructors may raise anything
        raise InputError(f"{name}: not valid YAML: {quoted(str(error))[1:-1]}") from None


# An unterminated string or comment matches up to the end of the text. Otherwise the search for its end would start
# again at each further quote, which takes quadratic time.
_STRING = r'("(?:\\.|[^"\\])*(?:"|\\?\Z))'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING_COMMA = re.compile(_STRING + r"|,(?=\s*[}\]])", re.DOTALL)


def _without_comments(text: str) -> str:
    """``text`` without comments and trailing commas. Spaces replace them, so that line numbers stay correct."""
    def blank(match: re.Match[str]) -> str:
        unterminated = match[0].startswith("/*") and (len(match[0]) < 4 or not match[0].endswith("*/"))
        return match[0] if match[1] or unterminated else re.sub(r"[^\n]", " ", match[0])

    return _TRAILING_COMMA.sub(lambda m: m[1] or "", _COMMENT.sub(blank, text))


def _no_repeats(pairs: list[tuple[Any, Any]], name: str) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[Any] = set()
        for key, _ in pairs:
            if key in seen:
                raise InputError(f"{name}: the key {quoted(key)} is given twice: keep one")
            seen.add(key)
    return mapping


def _type_text(value: Any) -> str:
    names: dict[type, str] = {list: "a list", str: "text"}
    return "nothing" if value is None else names.get(type(value), "a single value")
