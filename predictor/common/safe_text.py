"""Escapes text from outside before it is shown, so that it cannot control a terminal or reverse the text direction.

Names, keys and messages from other people's files may hold any character. Letters of every language stay as they are.
"""

from __future__ import annotations

import html
import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters, such as escape
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # text direction
    "\u2028\u2029"  # line and paragraph separators
    "\xad\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible characters
    "\ud800-\udfff]")  # surrogates: bytes of a file name that are not UTF-8, which no stream can encode


def printable(text: str, keep: str = "") -> str:
    """``text`` with unsafe characters escaped, such as ``\\x1b``. Characters in ``keep`` stay."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escaped(match[0]), text)


def markup(text: str) -> str:
    """``text`` escaped for HTML or SVG. Tabs and line breaks stay: they are only white space there."""
    return html.escape(printable(text, keep="\t\n\r"))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
