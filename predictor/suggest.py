"""How a wrong name or value is shown in a one-line message."""

from __future__ import annotations

import os
from collections.abc import Iterable


def show(value: object, limit: int = 60) -> str:
    """``value`` as it was written, on one line, cut at ``limit`` characters."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # a foreign object's __repr__ must not become the user's traceback
        text = f"<{type(value).__name__}>"
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: limit + 1])
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return f'"{text}"' if isinstance(value, str) else text


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
