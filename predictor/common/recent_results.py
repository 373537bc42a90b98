"""Keeps the latest results of a function that take much memory, as many as a limit on their sizes allows."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


class RecentResults(Generic[Given, Result]):
    """Like ``functools.lru_cache``, but old results are forgotten before a new one is computed.

    Arguments are hashable, and not given by name.

    Attributes:
        function: computes a result.
        size: size of the result for the same arguments, in any unit.
        most: limit of the sizes of all kept results together. A single result that is larger is kept alone.
    """

    def __init__(self, function: Callable[Given, Result], size: Callable[Given, int], most: int) -> None:
        self.function, self.size, self.most = function, size, most
        self._kept: dict[Hashable, tuple[Result, int]] = {}  # the latest is last

    def __call__(self, *given: Given.args, **named: Given.kwargs) -> Result:
        assert not named
        if given in self._kept:
            self._kept[given] = self._kept.pop(given)
        else:
            new = self.size(*given)  # type: ignore[call-arg]
            while self._kept and new + sum(size for _, size in self._kept.values()) > self.most:
                del self._kept[next(iter(self._kept))]
            self._kept[given] = self.function(*given), new  # type: ignore[call-arg]
        return self._kept[given][0]

    def forget(self) -> None:
        """Forgets all results."""
        self._kept.clear()
