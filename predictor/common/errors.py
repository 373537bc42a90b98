"""The exceptions for a user's mistake, and for a job that is not predicted."""

from __future__ import annotations

import re

from predictor.common.safe_text import printable

LONGEST_WORD, LONGEST_MESSAGE = 1_000, 2_500
"""Limits on the characters of a word and of a whole message, of which the start and the end are kept."""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
_LINE_BREAK = re.compile(r"[ \t]*[\r\n]+[ \t]*")


class InputError(Exception):
    """Wrong input or environment. The message is one line: what is wrong, where, and what to do (exit code 2).

    It may hold names and values from outside: their line breaks become blanks, other unsafe characters are escaped,
    and what is too long to be read is cut.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_readable(printable(_LINE_BREAK.sub(" ", message))))


def _readable(message: str) -> str:
    """A message without the middle of words, and of the message itself, that are too long."""
    return _cut(_LONG_WORD.sub(lambda match: _cut(match[0], 100), message), LONGEST_MESSAGE)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most // 2]}…{text[len(text) - (most - most // 2 - 1):]}"


class OtherReleases(InputError):
    """Packages are installed in other releases than those that are predicted."""


class NotPredicted(InputError):
    """A job that may well run, but that no formula and no trace covers: ``peakcast predict --run`` runs it instead.

    Attributes:
        otherwise: what else the user can do; the command line says it last.
    """

    def __init__(self, message: str = "", otherwise: str = "") -> None:
        super().__init__(message)
        self.otherwise = otherwise
