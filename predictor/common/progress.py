"""The type of functions that show the progress of long work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Progress = Callable[[Sequence], Iterable]
"""Wraps a list of work items, for example with a progress bar, and yields them in order."""
Tell = Callable[[str], None]
"""Receives a few words on what long work tries next."""


def silent(_: str) -> None:
    """Tells nobody."""
