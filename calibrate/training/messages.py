"""What is said to the user: each thing once, with the rank that says it."""

from __future__ import annotations

from collections.abc import Callable

from predictor.common.streams import say


def on_stderr(line: str) -> None:
    """Where lines go."""
    say(f"peakcast: {line}")


class Said:
    """One rank's words.

    Attributes:
        warnings: by kind.
        reasons: why something is not predicted.
    """

    def __init__(self, tell: Callable[[str], None], rank: int) -> None:
        self._tell, self._rank = tell, rank
        self.warnings: dict[str, str] = {}
        self.reasons: list[str] = []

    def say(self, line: str) -> None:
        """A line."""
        self._tell(f"rank {self._rank}: {line}" if self._rank else line)

    def warn(self, kind: str, line: str) -> None:
        """A danger."""
        if kind not in self.warnings:
            self.warnings[kind] = line
            self.say(f"warning: {line}")

    def not_predicted(self, why: Exception) -> None:
        """A reason."""
        if str(why) not in self.reasons:
            self.reasons.append(str(why))
            self.say(f"not predicted: {why}")
