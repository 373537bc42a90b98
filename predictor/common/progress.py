"""The progress of long work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Progress = Callable[[Sequence], Iterable]
"""Wraps a list of things to do, for example with a progress bar."""
