"""Packs samples into rows of a fixed length before training, as TRL does with ``packing`` and its default strategy.

Source: TRL 1.16, data_utils.py (``_pack_bfd``, best-fit decreasing with ``on_seq_length_overflow="truncate"``), which
``datasets.Dataset.map`` calls for each 1,000 samples.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque

import numpy as np

TOGETHER = 1_000
"""Samples that are packed together (datasets 5.2, arrow_dataset.py, ``map``, ``batch_size``)."""


def rows(lengths: np.ndarray, longest: int) -> list[np.ndarray]:
    """The samples of each row, as indices.

    Args:
        lengths: ``int64[samples]``, tokens of each sample, at most ``longest``.
        longest: tokens of a row at most.
    """
    packed: list[list[int]] = []
    for start in range(0, len(lengths), TOGETHER):
        packed += _packed(lengths[start : start + TOGETHER], longest, start)
    return [np.array(row) for row in packed]


def _packed(lengths: np.ndarray, longest: int, start: int) -> list[list[int]]:
    """Each sample, the longest first, goes into the row with the least room that holds it, or else into a new one."""
    found: list[list[int]] = []
    with_room = defaultdict[int, deque[list[int]]](deque)
    rooms: list[int] = []  # the keys of with_room, in ascending order
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        place = bisect_left(rooms, length)
        room = rooms[place] if place < len(rooms) else longest
        if room < longest:
            row = with_room[room].popleft()
        else:
            row = []
            found.append(row)
        row.append(start + index)
        if place < len(rooms) and not with_room[room]:
            del rooms[place]
        left = room - length
        if left:
            if not with_room[left]:
                insort(rooms, left)
            with_room[left].append(row)
    return found
