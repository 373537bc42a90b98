"""Reads the users' YAML and JSON files, and writes files whole; whatever is wrong with one becomes one line.

Every file from outside is opened by :func:`opened`, and what is read of it is bounded: what was read counts, not the
size that the file system tells, which pipes and devices do not have.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from predictor.common.errors import InputError
from predictor.common.suggestions import named, show

LARGEST_FILE_BYTES = 4 << 20
CHUNK_BYTES = 1 << 20
WRITER_COMES_SECONDS = 0.3
"""A pipe that nobody has opened for writing by then has no writer."""
SILENT_SECONDS = 30.0
"""What writes into a pipe may compute for so long before it writes on."""


def read_mapping(path: str | os.PathLike[str], what: str, strict_for: str = "") -> dict[Any, Any]:
    """The mapping in a ``.json`` file, or in a YAML file of any other name.

    Args:
        path: relative to the current directory.
        what: what the file is for, for the messages: "the DeepSpeed config".
        strict_for: who takes plain JSON alone, whatever the file is called.

    Raises:
        InputError: no such file, not readable, not UTF-8, a syntax error, a repeated key, no mapping.
    """
    name = named(path)
    text = read_text(path, what)
    value = parse_json(text, name, strict_for) if strict_for or name.lower().endswith(".json") else \
        parse_yaml(text, name)
    if not isinstance(value, dict):
        raise InputError(f"{name}: holds {_kind(value)}, not a mapping of keys to values")
    return value


def read_text(path: str | os.PathLike[str], what: str, most_bytes: int = LARGEST_FILE_BYTES) -> str:
    """The text of a file of at most so many bytes.

    Raises:
        InputError: no such file, not readable, larger, or not UTF-8.
    """
    data = read_bytes(path, what, most_bytes)
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()  # as text files are: line ends are \n
    except UnicodeDecodeError:
        raise InputError(f"{named(path)}: is not a text file in UTF-8") from None


def read_bytes(path: str | os.PathLike[str], what: str, most_bytes: int = LARGEST_FILE_BYTES) -> bytes:
    """What a file of at most so many bytes holds; nothing is read beyond.

    Raises:
        InputError: no such file, not readable, or larger.
    """
    name = named(path)
    try:
        with opened(path) as stream:
            data = bytearray()
            while len(data) <= most_bytes and (chunk := stream.read(min(CHUNK_BYTES, most_bytes + 1 - len(data)))):
                data += chunk
    except FileNotFoundError:
        raise InputError(f"{name}: no such file: check the path of {what} (looked in the current directory)") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a directory: name the file that holds {what}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot be read: {reason}") from None
    if len(data) > most_bytes:
        raise InputError(f"{name}: is larger than {most_bytes >> 20} MiB: this is not {what}")
    return bytes(data)


class NotAFile(OSError):
    """What lies there is of a kind that is not read."""


@contextmanager
def opened(path: str | os.PathLike[str], *, pipes: bool = True) -> Iterator[BinaryIO]:
    """A file from outside, open for reading: a regular file or, if ``pipes``, a pipe that somebody writes to.

    Nothing waits here for what may never come: a pipe without a writer is refused, and so is any device.

    Raises:
        OSError: it cannot be opened, is something else, or nothing comes out of the pipe.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode) and not (pipes and stat.S_ISFIFO(mode)):
            raise NotAFile(errno.EINVAL, f"it is no regular file{' and no pipe' if pipes else ''}")
        raw = _Pipe(handle) if stat.S_ISFIFO(mode) else open(handle, "rb", buffering=0, closefd=False)  # noqa: SIM115
        yield io.BufferedReader(raw)
    finally:
        os.close(handle)


class _Pipe(io.RawIOBase):
    """The reading end of a pipe, which does not block: it waits for its writer, but not for ever."""

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
            except BlockingIOError:  # it has a writer, which is silent
                continue
            if not count and not ready and not self._begun:
                raise OSError(errno.EPIPE, "it is a pipe, and nobody writes to it")
            self._begun = True
            return count
        raise OSError(errno.ETIMEDOUT, f"it is a pipe, and nothing came out of it for {SILENT_SECONDS:.0f} seconds")


def write_whole(path: str, data: bytes) -> None:
    """Writes a whole file or nothing: to a temporary neighbour, then renamed over ``path``.

    Raises:
        InputError: it cannot be written there.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=Path(path).parent, prefix=".peakcast-")
        try:
            with open(handle, "wb") as stream:
                stream.write(data)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)  # mkstemp makes files that only their owner can read
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{named(path)}: cannot be written: {error.strerror}") from None


def parse_json(text: str, name: str, strict_for: str = "") -> Any:
    """JSON, with the comments and trailing commas that DeepSpeed's own reader (hjson) also accepts; without them where
    somebody else reads it."""
    text = text if strict_for else _plain(text)
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _no_repeats(pairs, name))
    except json.JSONDecodeError as error:
        raise InputError(f"{name}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}" + (
            f" ({strict_for} takes no comments and trailing commas)" if strict_for else "")) from None
    except (ValueError, RecursionError):  # an integer of thousands of digits; thousands of brackets
        raise InputError(f"{name}: not valid JSON: a number or the nesting is too long") from None


def parse_yaml(text: str, name: str) -> Any:
    """YAML 1.1 as PyYAML reads it, except that ``5e8`` is a number, as in JSON; bounded once aliases are put in."""
    from yaml import MarkedYAMLError  # imported late: most commands read none

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
        raise InputError(f"{name}: not valid YAML{where}: {show(error.problem or 'syntax error')[1:-1]}") from None
    except Exception as error:  # PyYAML lets through whatever its constructors raise
        raise InputError(f"{name}: not valid YAML: {show(str(error))[1:-1]}") from None


# Strings and comments go to the end of the text where they do not end: looking for the end again from each further
# quote or comment would take the square of the text.
_STRING = r'("(?:\\.|[^"\\])*(?:"|\\?\Z))'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING_COMMA = re.compile(_STRING + r"|,(?=\s*[}\]])", re.DOTALL)


def _plain(text: str) -> str:
    """``text`` without comments and trailing commas; line numbers stay."""
    def blank(found: re.Match[str]) -> str:
        endless = found[0].startswith("/*") and (len(found[0]) < 4 or not found[0].endswith("*/"))
        return found[0] if found[1] or endless else re.sub(r"[^\n]", " ", found[0])

    return _TRAILING_COMMA.sub(lambda m: m[1] or "", _COMMENT.sub(blank, text))


def _no_repeats(pairs: list[tuple[Any, Any]], name: str) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[Any] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise InputError(f"{name}: the key {show(repeated)} is given twice: keep one")
    return mapping


def _kind(value: Any) -> str:
    return "nothing" if value is None else {list: "a list", str: "text"}.get(type(value), "a single value")
