"""Text from outside as it may be shown: no character of it steers a terminal or turns the text around.

Names, keys and messages of other people's files may hold anything. Letters of every language are shown as they are.
"""

from __future__ import annotations

import html
import re

_STEERS = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters, escape among them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # which way text runs
    "\u2028\u2029"  # breaks of lines
    "\xad\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # what nobody sees
    "\ud800-\udfff]")  # bytes of a file's name that are no UTF-8, which no stream takes


def printable(text: str, keep: str = "") -> str:
    """``text`` with ``\\x1b`` for an escape character, and so on; those in ``keep`` stay."""
    return _STEERS.sub(lambda found: found[0] if found[0] in keep else _written(found[0]), text)


def markup(text: str) -> str:
    """The same as a part of HTML or SVG, where white space is no more than that."""
    return html.escape(printable(text, keep="\t\n\r"))


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
