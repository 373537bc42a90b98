"""Encodes columns of integers as one stream of bytes, which the page's script decodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def encode(column: Sequence[int] | np.ndarray) -> bytes:
    """Encodes each number as LEB128 (groups of seven bits, low ones first), with its sign in the lowest bit."""
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
    """Stores encoded columns one after another. Equal columns are stored once.

    ``ends`` has the end of each column in the stream, in bytes.
    """

    def __init__(self) -> None:
        self._stream = bytearray()
        self._places: dict[bytes, int] = {}
        self.ends: list[int] = []

    def add(self, column: Sequence[int] | np.ndarray) -> int:
        """Stores a column and returns its number."""
        content = encode(column)
        if content not in self._places:
            self._places[content] = len(self.ends)
            self._stream += content
            self.ends.append(len(self._stream))
        return self._places[content]

    @property
    def stream(self) -> bytes:
        return bytes(self._stream)
