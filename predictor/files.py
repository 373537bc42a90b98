"""Reads the users' YAML and JSON files, and writes files whole; whatever is wrong with one becomes one line."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from predictor.errors import InputError
from predictor.suggest import named, show

LARGEST_FILE_BYTES = 4 << 20


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
    """The text of a file of at most so many bytes."""
    name = named(path)
    try:
        if os.path.getsize(path) > most_bytes:
            raise InputError(f"{name}: is larger than {most_bytes >> 20} MiB: this is not {what}")
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{name}: no such file: check the path of {what} (looked in the current directory)") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a directory: name the file that holds {what}") from None
    except UnicodeDecodeError:
        raise InputError(f"{name}: is not a text file in UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot be read: {reason}") from None


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
    """YAML 1.1 as PyYAML reads it, except that ``5e8`` is a number, as in JSON."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            _no_repeats([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)], name)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))
    try:
        return yaml.load(text, Loader)
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{name}: not valid YAML{where}: {show(error.problem or 'syntax error')[1:-1]}") from None
    except Exception as error:  # PyYAML lets through whatever its constructors raise
        raise InputError(f"{name}: not valid YAML: {show(str(error))[1:-1]}") from None


_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')


def _plain(text: str) -> str:
    """``text`` without comments and trailing commas; line numbers stay."""
    text = _COMMENT.sub(lambda m: m[1] or re.sub(r"[^\n]", " ", m[0]), text)
    return _TRAILING_COMMA.sub(lambda m: m[1] or "", text)


def _no_repeats(pairs: list[tuple[Any, Any]], name: str) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"{name}: the key {show(repeated)} is given twice: keep one")
    return mapping


def _kind(value: Any) -> str:
    return "nothing" if value is None else {list: "a list", str: "text"}.get(type(value), "a single value")
