"""Error about one key of a workload."""

from __future__ import annotations

from collections.abc import Callable

from predictor.common.errors import InputError


class KeyProblem(InputError):
    """An :class:`InputError` that carries the name of the key it is about."""

    def __init__(self, name: str, problem: object) -> None:
        super().__init__(self._sentence(name, problem))
        self.name, self.problem = name, problem

    def told(self, label: Callable[[str], str]) -> str:
        """The message with the key under the name that the user wrote; ``label`` maps a key to that name."""
        return self._sentence(label(self.name), self.problem)

    @staticmethod
    def _sentence(name: str, problem: object) -> str:
        # a message about a file's content names the file itself
        return str(problem) if isinstance(problem, InputError) else f"{name} {problem}"
