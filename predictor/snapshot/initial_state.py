"""Reconstructs the allocator's state at the beginning of a recording by undoing its history backwards.

A snapshot lists the segments at the end of the history. Undoing every entry from the last to the first leaves the
segments and blocks of the beginning. Neighbouring free blocks are always merged (``free_block``,
c10/cuda/CUDACachingAllocator.cpp), so the blocks in use determine the free ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from predictor.allocator.constants import LARGE_SEGMENT, SMALL_SEGMENT, SMALL_SIZE
from predictor.snapshot.records import Action, Block, Segment, State, Trace

SHARED = (0, 0)
"""The pool id of all memory outside of CUDA graphs and ``MemPool`` s."""


class Inconsistent(Exception):
    """The history cannot have led to the listed segments. The message names the entry."""


@dataclass(frozen=True, eq=False)
class Start:
    """The allocator's state at the beginning of a recording.

    Attributes:
        segments: sorted by address. Each private pool and stream has a stream number of its own, because the
            allocator keeps their blocks apart.
        streams: the stream number of each entry of the history.
        handles: stream number of a private pool -> the handle of its CUDA stream.
        guesses: number of blocks that may be larger than assumed, by less than 1 MiB (see :func:`_sizes`).
        floors: (pool, stream) -> the lowest address that its expandable segment ever mapped.
    """

    segments: tuple[Segment, ...]
    streams: list[int]
    handles: dict[int, int]
    guesses: int
    floors: dict[tuple[str, int], int]


@dataclass(slots=True)
class _Live:
    """A block in use. ``size`` is None where neither the history nor the segments contain it."""

    size: int | None
    requested: int
    pending: bool


@dataclass(slots=True)
class _Range:
    """The range of addresses of a segment."""

    address: int
    size: int
    stream: int
    pool: str
    pool_id: tuple[int, int]
    is_expandable: bool

    @property
    def end(self) -> int:
        return self.address + self.size


class _Ranges:
    """The segments at one point of the history, sorted by address."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._by_address = {s.address: _Range(s.address, s.total_size, s.stream, s.pool, s.pool_id, s.is_expandable)
                            for s in segments}
        self._addresses = sorted(self._by_address)

    def __iter__(self) -> Iterator[_Range]:
        return iter([self._by_address[address] for address in self._addresses])

    def around(self, address: int, size: int = 1) -> _Range:
        """The range that contains ``size`` bytes at an address.

        Raises:
            Inconsistent: no range does.
        """
        index = bisect_right(self._addresses, address) - 1
        segment = self._by_address[self._addresses[index]] if index >= 0 else None
        if segment is None or address + size > segment.end:
            raise Inconsistent("is outside of every segment")
        return segment

    def add(self, new: _Range) -> None:
        """Adds a range. It merges adjacent mapped ranges of one expandable segment."""
        index = bisect_left(self._addresses, new.address)
        before = self._by_address[self._addresses[index - 1]] if index else None
        after = self._by_address[self._addresses[index]] if index < len(self._addresses) else None
        if before is not None and before.end > new.address or after is not None and new.end > after.address:
            raise Inconsistent("overlaps another segment")
        if new.is_expandable:
            for near in (before, after):
                if near is not None and near.is_expandable and near.stream == new.stream \
                        and (near.end == new.address or new.end == near.address):
                    self._remove(near)
                    new = _Range(min(near.address, new.address), near.size + new.size, near.stream, near.pool,
                                 near.pool_id, True)
        self._insert(new)

    def take(self, address: int, size: int) -> None:
        """Removes a range: a whole segment, or a part of an expandable segment."""
        segment = self.around(address, size)
        if not segment.is_expandable and (segment.address, segment.size) != (address, size):
            raise Inconsistent(f"is a piece of the segment of {segment.size:,} bytes at {segment.address:#x}")
        self._remove(segment)
        for start, end in ((segment.address, address), (address + size, segment.end)):
            if start < end:
                self._insert(_Range(start, end - start, segment.stream, segment.pool, segment.pool_id, True))

    def maps_only(self, segment: _Range, size: int) -> bool:
        """Whether exactly ``size`` bytes are mapped for the segment's pool and stream."""
        mapped = sum(r.size for r in self if r.is_expandable and (r.pool, r.stream) == (segment.pool, segment.stream))
        return mapped == size

    def _insert(self, new: _Range) -> None:
        self._addresses.insert(bisect_left(self._addresses, new.address), new.address)
        self._by_address[new.address] = new

    def _remove(self, old: _Range) -> None:
        del self._addresses[bisect_left(self._addresses, old.address)]
        del self._by_address[old.address]


def start_of(trace: Trace, segments: Sequence[Segment], rounded: Callable[[int], int],
             largest_split: int) -> Start:
    """Computes the segments and blocks before the first entry.

    Args:
        trace: the history of one device.
        segments: the segments of that device after the last entry.
        rounded: maps the bytes of a request to the bytes of its block.
        largest_split: blocks of this many bytes or more are never split (``max_split_size``).

    Raises:
        Inconsistent: the history cannot have led to these segments.
    """
    ranges = _Ranges(segments)
    live = {block.address: _Live(block.size, block.requested_size, block.state is State.PENDING)
            for segment in segments for block in segment.blocks if block.state is not State.FREE}
    numbers = _Numbers(trace, segments)
    streams = trace.stream.tolist()
    floors: dict[tuple[str, int], int] = {}
    columns = (column[::-1].tolist() for column in (trace.action, trace.address, trace.size, trace.stream))
    for index, action, address, size, stream in zip(range(len(trace) - 1, -1, -1), *columns):
        try:
            segment = _undo(Action(action), address, size, stream, ranges, live)
        except Inconsistent as error:
            raise Inconsistent(f"entry {index}, {Action(action).name.lower()} of {size:,} bytes at {address:#x}, "
                               f"{error}") from None
        if segment is not None:
            streams[index] = numbers.of(segment.pool_id, stream)
            place = segment.pool, streams[index]
            if action == Action.SEGMENT_MAP:
                floors[place] = min(address, floors.get(place, address))
            elif action == Action.SEGMENT_UNMAP and ranges.maps_only(segment, size):
                floors.pop(place, None)  # this entry unmapped the whole segment: later pages belong to a new segment
    _check_inside(ranges, live)
    guesses = _sizes(trace, ranges, live, rounded, largest_split)
    return Start(_segments(ranges, live, numbers), streams, numbers.handles, guesses, floors)


def _undo(action: Action, address: int, size: int, stream: int, ranges: _Ranges,
          live: dict[int, _Live]) -> _Range | None:
    """Changes ``ranges`` and ``live`` from the state after an entry to that before it. Returns the entry's segment."""
    if action is Action.ALLOC:
        block = live.pop(address, None)
        if block is None or block.pending or block.requested != size:
            raise Inconsistent("does not match the block that is there afterwards")
        return ranges.around(address, size)
    if action is Action.FREE_REQUESTED:
        if address not in live or not live[address].pending or live[address].requested != size:
            raise Inconsistent("does not match the pending block that is there afterwards")
        live[address].pending = False
        return ranges.around(address, size)
    if action is Action.FREE_COMPLETED:
        if address in live:
            raise Inconsistent("is still in use afterwards")
        live[address] = _Live(None, size, True)
        return ranges.around(address, size)
    if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
        segment = ranges.around(address, size)
        ranges.take(address, size)
        return segment
    if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
        expandable = action is Action.SEGMENT_UNMAP
        unit = LARGE_SEGMENT if expandable else 0  # page of the large pool; all segments of the small pool are equal
        small = size % unit != 0 if unit else size == SMALL_SEGMENT
        ranges.add(_Range(address, size, stream, "small" if small else "large", SHARED, expandable))
        return ranges.around(address, size)
    return None


class _Numbers:
    """Numbers streams. A stream of a private pool gets a number that is no stream's handle."""

    def __init__(self, trace: Trace, segments: Sequence[Segment]) -> None:
        self.handles: dict[int, int] = {}
        self._numbers: dict[tuple[tuple[int, int], int], int] = {}
        known = {segment.stream for segment in segments} | set(trace.stream.tolist())
        self._next = max(known, default=0) + 1

    def of(self, pool_id: tuple[int, int], stream: int) -> int:
        if pool_id == SHARED:
            return stream
        if (pool_id, stream) not in self._numbers:
            self._numbers[pool_id, stream] = self._next
            self.handles[self._next] = stream
            self._next += 1
        return self._numbers[pool_id, stream]


def _check_inside(ranges: _Ranges, live: dict[int, _Live]) -> None:
    for address, block in live.items():
        try:
            ranges.around(address, block.requested)
        except Inconsistent as error:
            raise Inconsistent(f"the block of {block.requested:,} bytes at {address:#x} of the beginning {error}"
                               ) from None


def _sizes(trace: Trace, ranges: _Ranges, live: dict[int, _Live], rounded: Callable[[int], int],
           largest_split: int) -> int:
    """Determines the size of each block that was allocated before the recording and freed during it.

    The size is the rounded request, except in the large pool. There, a remainder of up to 1 MiB is not split off
    (``should_split``, CUDACachingAllocator.cpp), and no block is that small. So free space of up to 1 MiB behind the
    block belongs to it. If there is more free space, the next block allocated there shows where the free space begins.
    Without such a block, the smallest possible size is assumed.

    Returns the number of assumed sizes.
    """
    addresses = sorted(live)
    undecided: dict[int, tuple[int, int]] = {}  # address -> smallest end of the block, end of the space behind it
    for number, address in enumerate(addresses):
        block = live[address]
        if block.size is not None:
            continue
        segment = ranges.around(address)
        behind = addresses[number + 1] if number + 1 < len(addresses) else segment.end
        room = min(behind, segment.end) - address
        block.size = rounded(block.requested)
        if block.size > room:
            raise Inconsistent(f"the block of {block.requested:,} bytes at {address:#x} overlaps the next one")
        if segment.pool == "small" or segment.is_expandable:
            continue
        if room - block.size <= SMALL_SIZE or block.size >= largest_split:
            block.size = room
        else:
            undecided[address] = (address + block.size, address + room)
    return _first_uses(trace, live, undecided)


def _first_uses(trace: Trace, live: dict[int, _Live], undecided: dict[int, tuple[int, int]]) -> int:
    """Finds the first allocation behind each undecided block. Returns the number of blocks freed before any."""
    starts, guesses = sorted(undecided), 0
    for action, address in zip(trace.action.tolist(), trace.address.tolist()):
        if not undecided:
            break
        if action == Action.FREE_COMPLETED:
            guesses += undecided.pop(address, None) is not None
        elif action == Action.ALLOC:
            index = bisect_right(starts, address) - 1
            start = starts[index] if index >= 0 else -1
            end, limit = undecided.get(start, (0, 0))
            if end <= address < limit:
                if address - end <= SMALL_SIZE:
                    live[start].size = address - start
                del undecided[start]
    return guesses


def _segments(ranges: _Ranges, live: dict[int, _Live], numbers: _Numbers) -> tuple[Segment, ...]:
    """The segments with their blocks: the blocks in use, and free blocks in the gaps between them."""
    addresses = sorted(live)
    segments = []
    for segment in ranges:
        blocks, end = [], segment.address
        for address in addresses[bisect_left(addresses, end): bisect_left(addresses, segment.end)]:
            block = live[address]
            assert block.size is not None  # _sizes has set it
            if end < address:
                blocks.append(Block(end, address - end, 0, State.FREE))
            state = State.PENDING if block.pending else State.ALLOCATED
            blocks.append(Block(address, block.size, block.requested, state))
            end = address + block.size
        if end < segment.end:
            blocks.append(Block(end, segment.end - end, 0, State.FREE))
        segments.append(Segment(0, segment.address, segment.size, numbers.of(segment.pool_id, segment.stream),
                                segment.pool, SHARED, segment.is_expandable, tuple(blocks)))
    return tuple(segments)
