"""The error of one key of a workload."""

from __future__ import annotations

from collections.abc import Callable

from predictor.common.errors import InputError


class KeyProblem(InputError):
    """An :class:`InputError` that knows which key it is about."""

    def __init__(self, name: str, problem: object) -> None:
        super().__init__(self._sentence(name, problem))
        self.name, self.problem = name, problem

    def told(self, label: Callable[[str], str]) -> str:
        """The message with the key called what the user called it."""
        return self._sentence(label(self.name), self.problem)

    @staticmethod
    def _sentence(name: str, problem: object) -> str:
        # a message about a file's content names the file itself
        return str(problem) if isinstance(problem, InputError) else f"{name} {problem}"
