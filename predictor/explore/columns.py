"""Columns of whole numbers as one stream of bytes: the page's script reads them back (``events.js``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def encode(column: Sequence[int] | np.ndarray) -> bytes:
    """Each number as groups of seven bits, low ones first (LEB128), its sign in the lowest bit."""
    values = np.asarray(column, dtype=np.int64)
    rest = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    groups, alive = [], np.ones(len(rest), dtype=bool)
    while alive.any():
        later = rest >> np.uint64(7)
        groups.append((rest & np.uint64(127) | np.where(later > 0, np.uint64(128), np.uint64(0)), alive))
        rest, alive = later, alive & (later > 0)
    if not groups:
        return b""
    table = np.stack([group for group, _ in groups], axis=1).astype(np.uint8)
    return table[np.stack([mask for _, mask in groups], axis=1)].tobytes()


class Store:
    """Columns one after another; equal ones are kept once."""

    def __init__(self) -> None:
        self._stream = bytearray()
        self._places: dict[bytes, int] = {}
        self.ends: list[int] = []

    def add(self, column: Sequence[int] | np.ndarray) -> int:
        """The number of a column."""
        content = encode(column)
        if content not in self._places:
            self._places[content] = len(self.ends)
            self._stream += content
            self.ends.append(len(self._stream))
        return self._places[content]

    @property
    def stream(self) -> bytes:
        return bytes(self._stream)
