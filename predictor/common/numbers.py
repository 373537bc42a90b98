"""Reads numbers that come from outside: text of any length and script, and numbers without a bound.

``int`` and ``float`` raise ValueError for text that is no number and for more than 4,300 digits, OverflowError for
infinities and for integers of more than 308 digits. ``str.isdecimal`` is true for digits of other scripts, too, and
``str.isdigit`` even for ``²``, which ``int`` rejects. So nothing that a user writes is given to them directly.
"""

from __future__ import annotations

import math

MOST_DIGITS = 19
"""Digits of a whole number in text: all that 63 bits hold."""


def whole(text: str) -> int | None:
    """The number that a text of ASCII digits writes; None for any other text, and for more than :data:`MOST_DIGITS`."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


def finite(value: object) -> float | None:
    """A number, or the number that a text writes, as a float; None for anything else, and for what is not finite.

    True and false are no numbers. Underscores in text are rejected, because only Python accepts them (``1_0``).
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or isinstance(value, str) and "_" in value:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
