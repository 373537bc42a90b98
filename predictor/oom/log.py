"""Splits a log into the lines of each process, by the prefixes that launchers and PyTorch put before them."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from predictor.common.errors import InputError

LARGEST_LOG_BYTES = 24 << 20
MOST_LINES = 500_000
LONGEST_LINE = 20_000
"""Characters of a line that are read; the rest is left out."""

_LINE_END = re.compile("\r\n|\n|\r")
_PREFIXES = (
    (re.compile(r"\[rank(\d{1,6})\]:[ ]?"), "rank"),  # PyTorch's own exception hook (torch.distributed)
    (re.compile(r"\[([A-Za-z_]{1,32})(\d{1,6})\]:[ ]?"), ""),  # torchrun --tee: [default3]: is local rank 3
    (re.compile(r"\[\d{1,9},(\d{1,6})\]<std(?:err|out)>:[ ]?"), "rank"),  # mpirun --tag-output
    (re.compile(r"[ ]{0,8}(\d{1,6}):[ ]"), "rank"),  # srun --label
    (re.compile(r"\((?:[\w.]{1,80} )?pid=(\d{1,9})[^()\n]{0,80}\)[ ]"), "process"),  # Ray
)


@dataclass
class Stream:
    """The lines of one process, without their prefixes. ``source`` names it ("rank 3"); empty without a prefix."""

    source: str
    numbers: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def text(self) -> str:
        """All lines, joined."""
        return "\n".join(self.lines)

    def starts(self) -> list[int]:
        """The place in :meth:`text` where each line begins."""
        places, place = [], 0
        for line in self.lines:
            places.append(place)
            place += len(line) + 1
        return places


def streams(text: str) -> list[Stream]:
    """The lines of a log by process, in the order of their first lines.

    Raises:
        InputError: too many lines.
    """
    found: dict[str, Stream] = {}
    if text.count("\n") + text.count("\r") - text.count("\r\n") >= MOST_LINES:
        raise InputError(f"it has more than {MOST_LINES:,} lines: give the part around the error (tail -n 100000)")
    for number, line in enumerate(_LINE_END.split(text), start=1):
        source, rest = _split(line[:LONGEST_LINE])
        stream = found.get(source) or found.setdefault(source, Stream(source))
        stream.numbers.append(number)
        stream.lines.append(rest)
    return list(found.values())


def line_at(starts: list[int], place: int) -> int:
    """The index of the line that contains a place of the text."""
    return bisect_right(starts, place) - 1


def _split(line: str) -> tuple[str, str]:
    """The process that a line is of, and the line without up to two prefixes (a launcher's and PyTorch's own)."""
    source = ""
    for _ in range(2):
        for pattern, name in _PREFIXES:
            match = pattern.match(line)
            if match:
                source = " ".join((name, *match.groups())).strip()
                line = line[match.end():]
                break
        else:
            break
    return source, line
