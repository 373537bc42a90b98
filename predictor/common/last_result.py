"""Keeps the last result of a function, and forgets it before it computes another."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def last_result(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """``functools.lru_cache(maxsize=1)`` for results that take much memory: there are never two of them.

    Arguments are hashable, and not given by name.
    """
    kept: dict[Hashable, Result] = {}

    @wraps(function)
    def cached(*given: Given.args, **named: Given.kwargs) -> Result:
        assert not named
        if given not in kept:
            kept.clear()
            kept[given] = function(*given, **named)
        return kept[given]

    return cached
