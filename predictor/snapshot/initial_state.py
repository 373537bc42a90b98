"""What the allocator held when a recording began, found by walking its history backwards.

The history says what changed, the segments of the snapshot what there was at the end. Undone from the last
entry to the first, the changes leave the segments and blocks of the beginning. Neighbouring free blocks are
always merged (``free_block``, c10/cuda/CUDACachingAllocator.cpp), so the blocks in use say where the free ones are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from predictor.allocator.constants import LARGE_SEGMENT, SMALL_SEGMENT, SMALL_SIZE
from predictor.snapshot.records import Action, Block, Segment, State, Trace

SHARED = (0, 0)
"""The pool id of everything outside of CUDA graphs and ``MemPool`` s."""


class Inconsistent(Exception):
    """The history and the segments do not belong together; the message names the entry."""


@dataclass(frozen=True, eq=False)
class Start:
    """The beginning of a recording.

    Attributes:
        segments: by address. Private pools stand for streams of their own, as the allocator keeps them.
        streams: of each entry, likewise.
        handles: the stream's handle that such a number stands for.
        guesses: how many blocks may be larger than taken for, by less than 1 MiB (see :func:`_sizes`).
        floors: of the expandable segment of each pool and stream, the lowest address where anything was mapped.
    """

    segments: tuple[Segment, ...]
    streams: list[int]
    handles: dict[int, int]
    guesses: int
    floors: dict[tuple[str, int], int]


@dataclass(slots=True)
class _Live:
    """A block in use; ``size`` is None where neither the history nor the segments tell it."""

    size: int | None
    requested: int
    pending: bool


@dataclass(slots=True)
class _Range:
    """A segment's range of addresses."""

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
    """The segments at one point of the history, by address."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._by_address = {s.address: _Range(s.address, s.total_size, s.stream, s.pool, s.pool_id, s.is_expandable)
                            for s in segments}
        self._addresses = sorted(self._by_address)

    def __iter__(self):
        return iter([self._by_address[address] for address in self._addresses])

    def around(self, address: int, size: int = 1) -> _Range:
        """The one that holds so many bytes at an address."""
        index = bisect_right(self._addresses, address) - 1
        found = self._by_address[self._addresses[index]] if index >= 0 else None
        if found is None or address + size > found.end:
            raise Inconsistent("is outside of every segment there is")
        return found

    def add(self, new: _Range) -> None:
        """Put one back; mapped pieces of an expandable segment that touch are one."""
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
        """Take a range away: a whole segment, or a piece of an expandable one."""
        found = self.around(address, size)
        if not found.is_expandable and (found.address, found.size) != (address, size):
            raise Inconsistent(f"is a piece of the segment of {found.size:,} bytes at {found.address:#x}")
        self._remove(found)
        for start, end in ((found.address, address), (address + size, found.end)):
            if start < end:
                self._insert(_Range(start, end - start, found.stream, found.pool, found.pool_id, True))

    def is_all(self, found: _Range, size: int) -> bool:
        """Whether so many bytes of a range are all that is mapped for its pool and stream."""
        mapped = sum(r.size for r in self if r.is_expandable and (r.pool, r.stream) == (found.pool, found.stream))
        return mapped == size

    def _insert(self, new: _Range) -> None:
        self._addresses.insert(bisect_left(self._addresses, new.address), new.address)
        self._by_address[new.address] = new

    def _remove(self, old: _Range) -> None:
        del self._addresses[bisect_left(self._addresses, old.address)]
        del self._by_address[old.address]


def start_of(trace: Trace, segments: Sequence[Segment], rounded: Callable[[int], int],
             largest_split: int) -> Start:
    """The segments and blocks before the first entry.

    Args:
        trace: the history of one device.
        segments: of that device, after the last entry.
        rounded: the size of a block for a request, both in bytes.
        largest_split: blocks of this size and more are never split (``max_split_size``), in bytes.

    Raises:
        Inconsistent: the history cannot have led to these segments.
    """
    ranges = _Ranges(segments)
    live = {block.address: _Live(block.size, block.requested_size, block.state is State.PENDING)
            for segment in segments for block in segment.blocks if block.state is not State.FREE}
    numbers = _Numbers(trace, segments)
    streams = trace.stream.tolist()
    floors: dict[tuple[str, int], int] = {}
    columns = zip(trace.action.tolist(), trace.address.tolist(), trace.size.tolist(), trace.stream.tolist())
    for index, (action, address, size, stream) in reversed(list(enumerate(columns))):
        try:
            found = _undo(Action(action), address, size, stream, ranges, live)
        except Inconsistent as error:
            raise Inconsistent(f"entry {index}, {Action(action).name.lower()} of {size:,} bytes at {address:#x}, "
                               f"{error}") from None
        if found is not None:
            streams[index] = numbers.of(found.pool_id, stream)
            place = found.pool, streams[index]
            if action == Action.SEGMENT_MAP:
                floors[place] = min(address, floors.get(place, address))
            elif action == Action.SEGMENT_UNMAP and ranges.is_all(found, size):
                floors.pop(place, None)  # nothing was left: what is mapped later is another segment's
    _check_inside(ranges, live)
    guesses = _sizes(trace, ranges, live, rounded, largest_split)
    return Start(_segments(ranges, live, numbers), streams, numbers.handles, guesses, floors)


def _undo(action: Action, address: int, size: int, stream: int, ranges: _Ranges,
          live: dict[int, _Live]) -> _Range | None:
    """The state before an entry, from the state after it; returns the segment it is in."""
    if action is Action.ALLOC:
        block = live.pop(address, None)
        if block is None or block.pending or block.requested != size:
            raise Inconsistent("is not what lies there afterwards")
        return ranges.around(address, size)
    if action is Action.FREE_REQUESTED:
        if address not in live or not live[address].pending or live[address].requested != size:
            raise Inconsistent("is not what waits there afterwards")
        live[address].pending = False
        return ranges.around(address, size)
    if action is Action.FREE_COMPLETED:
        if address in live:
            raise Inconsistent("is still in use afterwards")
        live[address] = _Live(None, size, True)
        return ranges.around(address, size)
    if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
        found = ranges.around(address, size)
        ranges.take(address, size)
        return found
    if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
        expandable = action is Action.SEGMENT_UNMAP
        unit = LARGE_SEGMENT if expandable else 0  # pages of the large pool; a small segment has one size only
        small = size % unit != 0 if unit else size == SMALL_SEGMENT
        ranges.add(_Range(address, size, stream, "small" if small else "large", SHARED, expandable))
        return ranges.around(address, size)
    return None


class _Numbers:
    """Streams by number: those of private pools get numbers that no handle has."""

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
    """Gives a size to blocks that were there before the recording and gone after it; returns how many are guesses.

    The request rounded up, except in the large pool: a rest of up to 1 MiB is not split off (``should_split``,
    CUDACachingAllocator.cpp), and nothing else there is that small. So if the free space behind the block is at
    most that, it is the block's. If it is more, the next block put there says where the free space begins;
    without one, the block is taken for as small as it can be.
    """
    addresses = sorted(live)
    open_: dict[int, tuple[int, int]] = {}
    for number, address in enumerate(addresses):
        block = live[address]
        if block.size is not None:
            continue
        found = ranges.around(address)
        behind = addresses[number + 1] if number + 1 < len(addresses) else found.end
        room = min(behind, found.end) - address
        block.size = rounded(block.requested)
        if block.size > room:
            raise Inconsistent(f"the block of {block.requested:,} bytes at {address:#x} overlaps the next one")
        if found.pool == "small" or found.is_expandable:
            continue
        if room - block.size <= SMALL_SIZE or block.size >= largest_split:
            block.size = room
        else:
            open_[address] = (address + block.size, address + room)
    return _first_uses(trace, live, open_)


def _first_uses(trace: Trace, live: dict[int, _Live], open_: dict[int, tuple[int, int]]) -> int:
    """Looks for the first block put behind each of ``open_``; returns how many were freed before."""
    starts, guesses = sorted(open_), 0
    for action, address in zip(trace.action.tolist(), trace.address.tolist()):
        if not open_:
            break
        if action == Action.FREE_COMPLETED:
            guesses += open_.pop(address, None) is not None
        elif action == Action.ALLOC:
            index = bisect_right(starts, address) - 1
            start = starts[index] if index >= 0 else -1
            end, limit = open_.get(start, (0, 0))
            if end <= address < limit:
                if address - end <= SMALL_SIZE:
                    live[start].size += address - end
                del open_[start]
    return guesses


def _segments(ranges: _Ranges, live: dict[int, _Live], numbers: _Numbers) -> tuple[Segment, ...]:
    """The ranges with their blocks, free ones between those in use."""
    addresses = sorted(live)
    segments = []
    for found in ranges:
        blocks, at = [], found.address
        for address in addresses[bisect_left(addresses, at): bisect_left(addresses, found.end)]:
            block = live[address]
            if at < address:
                blocks.append(Block(at, address - at, 0, State.FREE))
            state = State.PENDING if block.pending else State.ALLOCATED
            blocks.append(Block(address, block.size, block.requested, state))
            at = address + block.size
        if at < found.end:
            blocks.append(Block(at, found.end - at, 0, State.FREE))
        segments.append(Segment(0, found.address, found.size, numbers.of(found.pool_id, found.stream), found.pool,
                                SHARED, found.is_expandable, tuple(blocks)))
    return tuple(segments)
