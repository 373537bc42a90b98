"""The exceptions for a user's mistake, and for a job that is not predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping

from predictor.common.safe_text import printable

_LINE_BREAK = re.compile(r"[ \t]*[\r\n]+[ \t]*")


class InputError(Exception):
    """Wrong input or environment. The message is one line: what is wrong, where, and what to do (exit code 2).

    It may hold names and values from outside: their line breaks become blanks, and other unsafe characters are escaped.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(_LINE_BREAK.sub(" ", message)))


class OtherReleases(InputError):
    """Packages are installed in other releases than those that are predicted.

    Attributes:
        installed: package -> the release that is installed here.
    """

    def __init__(self, message: str, installed: Mapping[str, str]) -> None:
        super().__init__(message)
        self.installed = installed


class NotPredicted(InputError):
    """A job that may well run, but that no formula and no trace covers: ``peakcast predict --run`` runs it instead.

    Attributes:
        otherwise: what else the user can do; the command line says it last.
    """

    def __init__(self, message: str = "", otherwise: str = "") -> None:
        super().__init__(message)
        self.otherwise = otherwise
