"""How a wrong name or value is shown in a one-line message."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any


def show(value: object, limit: int = 60) -> str:
    """``value`` as it was written, on one line, cut at ``limit`` characters."""
    try:
        text = value if isinstance(value, str) else _beginning(value, limit)
    except Exception:  # a foreign object's __repr__ must not become the user's traceback
        text = f"<{type(value).__name__}>"
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: limit + 1])
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return f'"{text}"' if isinstance(value, str) else text


def _beginning(value: object, limit: int) -> str:
    """The first characters of ``repr(value)``, a few more than ``limit`` at most: plain data can be shared so that all
    of it fits into no memory."""
    text = ""
    for piece in _pieces(value, limit, ()):
        text += piece
        if len(text) > limit:
            break
    return text


def _pieces(value: Any, limit: int, around: tuple[int, ...]) -> Iterator[str]:
    """``repr(value)`` piece by piece; ``around`` are the containers that it stands in."""
    kind = type(value)
    if kind in (bytes, bytearray) and len(value) > limit:
        yield repr(value[:limit + 1])
    elif kind is str and len(value) > limit:
        yield repr(value[:limit + 1])[:-1]
    elif kind not in _BRACKETS or not value:
        yield repr(value)
    elif id(value) in around or len(around) > limit:
        yield "...".join(_BRACKETS[kind])
    else:
        opening, closing = _BRACKETS[kind]
        yield opening
        for at, item in enumerate(islice(value.items() if kind is dict else value, limit)):
            inner = (_pieces(part, limit, (*around, id(value))) for part in (item if kind is dict else (item,)))
            first, *others = inner
            yield from chain((", ",) if at else (), first, *(chain((": ",), other) for other in others))
        yield "," + closing if kind is tuple and len(value) == 1 else closing


_BRACKETS = {dict: "{}", list: "[]", tuple: "()", set: "{}", frozenset: ("frozenset({", "})")}


def version_text(value: object) -> str:
    """A ``schema_version`` in a message; None is a document without one."""
    return "missing" if value is None else show(value)


def named(path: str | os.PathLike[str]) -> str:
    """The path of a file, as messages show it."""
    return show(os.fspath(path), 200)[1:-1]


def nearest(name: object, known: Iterable[str]) -> str:
    """`` (did you mean "…"?)`` with the known name most like ``name``, or nothing if none is."""
    import difflib  # imported late: only a mistake needs it

    bare = {_bare(candidate): candidate for candidate in known}
    wrong = _bare(str(name)[:100])
    likely = difflib.get_close_matches(wrong, bare, n=1, cutoff=0.6)
    if not likely and len(wrong) > 2:
        likely = [candidate for candidate in bare if wrong in candidate]
    return f' (did you mean "{bare[likely[0]]}"?)' if likely else ""


def _bare(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")
