"""Formats wrong names and values for one-line messages, and suggests the nearest known name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any


def quoted(value: object, limit: int = 60) -> str:
    """The text of a value on one line, cut at ``limit`` characters. Text is quoted."""
    try:
        text = value if isinstance(value, str) else _beginning(value, limit)
    except Exception:  # an error in an object's __repr__ must not become the user's traceback
        text = f"<{type(value).__name__}>"
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: limit + 1])
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return f'"{text}"' if isinstance(value, str) else text


def shortened(name: str, limit: int = 400) -> str:
    """A name, cut at ``limit`` characters."""
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _beginning(value: object, limit: int) -> str:
    """The first characters of ``repr(value)``, a few more than ``limit`` at most.

    The whole text may be too large for any memory, because lists can refer to the same list many times.
    """
    text = ""
    for piece in _pieces(value, limit, ()):
        text += piece
        if len(text) > limit:
            break
    return text


def _pieces(value: Any, limit: int, around: tuple[int, ...]) -> Iterator[str]:
    """``repr(value)`` piece by piece. ``around`` has the ids of the containers around the value."""
    value_type = type(value)
    if value_type in (bytes, bytearray) and len(value) > limit:
        yield repr(value[:limit + 1])
    elif value_type is str and len(value) > limit:
        yield repr(value[:limit + 1])[:-1]
    elif value_type not in _BRACKETS or not value:
        yield repr(value)
    elif id(value) in around or len(around) > limit:
        yield "...".join(_BRACKETS[value_type])
    else:
        opening, closing = _BRACKETS[value_type]
        yield opening
        is_mapping = value_type is dict
        for index, item in enumerate(islice(value.items() if is_mapping else value, limit)):
            inner = (_pieces(part, limit, (*around, id(value))) for part in (item if is_mapping else (item,)))
            first, *others = inner
            yield from chain((", ",) if index else (), first, *(chain((": ",), other) for other in others))
        yield "," + closing if value_type is tuple and len(value) == 1 else closing


_BRACKETS: dict[type, Sequence[str]] = {
    dict: "{}", list: "[]", tuple: "()", set: "{}", frozenset: ("frozenset({", "})")}


def version_text(value: object) -> str:
    """The text of a ``schema_version`` in a message. None means that the document has none."""
    return "missing" if value is None else quoted(value)


def file_name(path: str | os.PathLike[str]) -> str:
    """The text of a file's path in a message."""
    return quoted(os.fspath(path), 200)[1:-1]


def nearest(name: object, known: Iterable[str]) -> str:
    """`` (did you mean "…"?)`` with the known name that is most similar to ``name``. Empty if none is similar."""
    import difflib  # imported late: only error messages need it

    bare = {_bare(candidate): candidate for candidate in known}
    wrong = _bare(str(name)[:100])
    likely = difflib.get_close_matches(wrong, bare, n=1, cutoff=0.6)
    if not likely and len(wrong) > 2:
        likely = sorted((candidate for candidate in bare if wrong in candidate), key=lambda name: (len(name), name))
    return f' (did you mean "{bare[likely[0]]}"?)' if likely else ""


def _bare(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")
