"""Random sequences of allocations, the same for the same number, on which PyTorch and the simulation are compared."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

MIB, GIB = 2**20, 2**30
#: The default stream and three more.
STREAMS = 4


@dataclass(frozen=True)
class Case:
    """One sequence. ``room_bytes`` is what the driver has (None: the whole GPU); ``fraction`` limits the process.

    Events: ("malloc", buffer, size, stream), ("free", buffer), ("record", buffer, stream), ("empty_cache",),
    ("launch", count), ("synchronize",), ("settings", text).
    """

    settings: str
    room_bytes: int | None
    fraction: float
    events: tuple[tuple, ...]


def case(seed: int) -> Case:
    """The sequence of that number."""
    rng = random.Random(seed)
    room = None if rng.random() < 0.3 else int(2 ** rng.uniform(26, 36)) // (2 * MIB) * 2 * MIB
    settings = random_settings(rng)
    fraction = 1.0
    if "garbage" in settings or rng.random() < 0.15:
        fraction = min(0.99, rng.uniform(0.3, 1.1) * (room or 64 * GIB) / (80 * GIB))
    return Case(settings, room, fraction, tuple(_events(rng, room or 64 * GIB, settings)))


def random_settings(rng: random.Random) -> str:
    """A third: the defaults; else one or several settings."""
    parts = []
    if rng.random() < 0.67:
        if rng.random() < 0.2:
            parts.append(f"large_segment_size_mb:{rng.choice((11, 16, 32, 64, 21))}")
        large = int(parts[0].split(":")[1]) if parts else 20
        if rng.random() < 0.4:
            parts.append(f"max_split_size_mb:{rng.choice((large, large + 1, 100, 128, 512, 2048))}")
            if rng.random() < 0.4:
                parts.append(f"max_non_split_rounding_mb:{rng.choice((large, 100, 512))}")
        if rng.random() < 0.3:
            parts.append("roundup_power2_divisions:" + rng.choice(
                ("1", "2", "4", "8", "64", "1024", "[256:1,512:2,1024:4,>:8]", "[1:4,>:0]", "[>:4]", "[64:8,16:2,>:16]",
                 "[8:0,16:32]")))
        if rng.random() < 0.3:
            parts.append(f"garbage_collection_threshold:{rng.choice((0.1, 0.5, 0.8, 0.95))}")
        if rng.random() < 0.4:
            parts.append("expandable_segments:True")
    return ",".join(parts)


def _events(rng: random.Random, room: int, settings: str) -> Iterator[tuple]:
    """Allocations in sizes that come again, near the allocator's limits, or anywhere from a byte to the room."""
    palette = [_size(rng, room) for _ in range(rng.randint(1, 8))]
    streams = rng.choice((1, 1, 2, STREAMS))
    most_alive = rng.choice((5, 20, 60))
    sharing = rng.choice((0, 0.05, 0.3))
    # Not with max_split_size_mb: blocks that were split before make PyTorch free a part of a segment.
    changing = 0.05 if rng.random() < 0.3 and "max_split" not in settings else 0
    alive: list[int] = []
    for buffer in range(rng.choice((20, 60, 150))):
        while alive and rng.random() < (0.3 if len(alive) < most_alive else 0.7):
            yield "free", alive.pop(rng.choice((0, -1, rng.randrange(len(alive)))))
        size = rng.choice(palette) if rng.random() < 0.6 else _size(rng, room)
        yield "malloc", buffer, size, rng.randrange(streams)
        alive.append(buffer)
        while rng.random() < sharing:
            yield "record", rng.choice(alive), rng.randrange(STREAMS)
        if rng.random() < 0.15:
            yield "launch", rng.choice((1, 2, 5))
        if rng.random() < 0.02:
            yield ("synchronize",)
        if rng.random() < 0.02:
            yield ("empty_cache",)
        if rng.random() < changing:
            yield "settings", rng.choice((settings, "", "expandable_segments:True", "roundup_power2_divisions:4",
                                          "large_segment_size_mb:32,garbage_collection_threshold:0.4"))


def _size(rng: random.Random, room: int) -> int:
    """1 byte up to a little more than the room."""
    kind = rng.random()
    if kind < 0.25:
        near = rng.choice((512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 100 * MIB, 128 * MIB, 512 * MIB))
        return max(1, near + rng.choice((-512, -1, 0, 1, 512, MIB)))
    if kind < 0.5:
        return int(2 ** rng.uniform(20, 28))
    highest = min(room, 64 * GIB).bit_length() - (0.7 if kind < 0.55 else 4)
    return max(1, int(2 ** rng.uniform(0, highest)))
