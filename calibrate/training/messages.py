"""Messages to the user. Each is printed once, with the rank that sends it."""

from __future__ import annotations

from collections.abc import Callable

from predictor.common.streams import say


def on_stderr(line: str) -> None:
    """Prints a line on stderr."""
    say(f"peakcast: {line}")


class RankMessages:
    """Messages of one rank.

    Attributes:
        warnings: the first warning of each type.
        reasons: why something is not predicted.
    """

    def __init__(self, tell: Callable[[str], None], rank: int) -> None:
        self._tell, self._rank = tell, rank
        self.warnings: dict[str, str] = {}
        self.reasons: list[str] = []
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Prints a line, with the rank in front unless it is 0. A line that was printed before is not repeated."""
        if line in self._said:
            return
        self._said.add(line)
        self._tell(f"rank {self._rank}: {line}" if self._rank else line)

    def warn(self, topic: str, line: str) -> None:
        """Prints a warning unless one of its type was printed before."""
        if topic not in self.warnings:
            self.warnings[topic] = line
            self.say(f"warning: {line}")

    def not_predicted(self, reason: Exception) -> None:
        """Prints why something is not predicted, once for each reason."""
        if str(reason) not in self.reasons:
            self.reasons.append(str(reason))
            self.say(f"not predicted: {reason}")
