"""Formats bytes, counts and shares as text."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.events.events import Factor

GIB = 1 << 30
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def gib(size: int) -> str:
    """``13.16``: GiB with two decimals, for columns whose head names the unit; ``<0.01`` for small sizes above 0."""
    return "<0.01" if 0 < size * 200 < GIB else f"{size / GIB:,.2f}"


def size_text(size: int) -> str:
    """``13.16 GiB``, ``8.12 MiB`` or ``512 B``: a size in the largest unit in which it is at least 1."""
    for unit, scale in UNITS:
        if abs(size) >= scale:
            return f"{size / scale:,.2f} {unit}"
    return f"{size:,} B"


def batch_text(samples: int, tokens: int, *, packed: bool) -> str:
    """``2 x 1,536 tokens``, or ``3 samples packed into one row of 4,511 tokens``.

    Args:
        tokens: of each sample, padding included; of packed samples of all.
    """
    if packed:
        return f"{samples:,} sample{'' if samples == 1 else 's'} packed into one row of {tokens:,} tokens"
    return f"{samples:,} x {tokens:,} tokens"


def share(part: int, whole: int) -> str:
    """``29.1``: percent with one decimal."""
    return f"{100 * part / whole:.1f}" if whole else "0.0"


def factor_text(factors: Mapping[Factor, int], most: int = 3) -> str:
    """``parameters 12.55, gradients 0.40``: the largest factors in GiB."""
    largest = sorted(factors.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{factor.value} {gib(size)}" for factor, size in largest if size * 200 >= GIB)
