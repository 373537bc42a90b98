"""Sizes as PyTorch prints them: two decimals of the largest unit, so with a rounding error."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

UNIT_BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SIZE = r"[0-9]{1,20}(?:\.[0-9]{1,6})?\s+(?:bytes|KiB|MiB|GiB)"
"""A size in a message, as a regular expression (``format_size``, c10/core/CachingDeviceAllocator.h, PyTorch 2.11)."""
UNKNOWN_BYTES = 1 << 60
"""No device has so much memory. Where NVML does not know a process's memory it says 2^64 - 1 (on Windows and WSL)."""


@dataclass(frozen=True)
class Amount:
    """A number of bytes that is known up to ``rounding_bytes``, up and down."""

    bytes: int
    rounding_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.bytes + other.bytes, self.rounding_bytes + other.rounding_bytes)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.bytes - other.bytes, self.rounding_bytes + other.rounding_bytes)

    def may_be(self, size: int) -> bool:
        """Whether this many bytes can be printed so."""
        return abs(self.bytes - size) <= self.rounding_bytes

    def surely_exceeds(self, other: Amount) -> bool:
        """Whether it is larger, whatever the rounding hides."""
        return self.bytes - other.bytes > self.rounding_bytes + other.rounding_bytes

    @property
    def or_nothing(self) -> Amount:
        """The same, or 0 where rounding made it negative."""
        return Amount(max(0, self.bytes), self.rounding_bytes)


def amount(text: str) -> Amount:
    """The size that a text such as ``70.10 GiB`` stands for. The text matches :data:`SIZE`."""
    number, unit = text.split()
    scale = UNIT_BYTES[unit]
    digits = len(number.partition(".")[2])
    rounding = -(-scale // (2 * 10**digits)) if scale > 1 else 0
    return Amount(round(Decimal(number) * scale), rounding)
