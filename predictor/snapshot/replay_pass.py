"""One pass over a recorded history: the simulation decides, and each decision is compared."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from predictor.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemory
from predictor.allocator import events as allocator_events
from predictor.allocator.blocks import ADDRESS_BITS, FREE, Arena
from predictor.allocator.constants import SMALL_SEGMENT, SMALL_SIZE
from predictor.allocator.search import choose
from predictor.allocator.sizes import round_to_division
from predictor.snapshot.initial_state import Start
from predictor.snapshot.recorded_driver import Answer, Question, RecordedDriver, Refused, TooEarly
from predictor.snapshot.records import Action, Segment, Trace
from predictor.snapshot.replay_messages import SegmentEvent, blocks_text, events_text, layout
from predictor.snapshot.warm_start import seed

NEW = {Action.SEGMENT_ALLOC: "segment_alloc", Action.SEGMENT_MAP: "segment_map"}
GIVEN_BACK = {Action.SEGMENT_FREE: "segment_free", Action.SEGMENT_UNMAP: "segment_unmap"}
PLAIN = [Action.FREE_REQUESTED, Action.FREE_COMPLETED]
AFTER_PLAIN = frozenset((Action.ALLOC, Action.FREE_REQUESTED, Action.SEGMENT_ALLOC))
TRIPPED = (AttributeError, LookupError, RuntimeError, ValueError)
"""What the simulation raises where a history breaks a rule that it relies on."""


class Contradiction(Exception):
    """The history does things that no allocator does; the message says where and, where it is known, what."""


@dataclass(frozen=True)
class Divergence:
    """The first point where the simulation decided otherwise; ``entry`` is None for the state at the end."""

    entry: int | None
    recorded: str
    simulated: str


class Run:
    """The allocator, the recorded blocks by address, and what was decided otherwise."""

    def __init__(self, settings: AllocatorSettings, start: Start, total_bytes: int | None = None) -> None:
        # Limits and garbage collection are in the history: as refusals, and as segments given back.
        rules = replace(settings, garbage_collection_threshold=0.0, per_process_memory_fraction=1.0)
        self._collects = settings.garbage_collection_threshold > 0
        self._divisions = settings.roundup_power2_divisions
        self._handles = start.handles
        self._maps: dict[tuple[bool, int], list[int]] | None = None  # entries, by "is small" and stream
        self.driver = RecordedDriver(total_bytes)
        self.allocator = CachingAllocator(rules, self.driver, completion="synchronization")
        self.divergence: Divergence | None = None
        try:
            self._blocks = seed(self.allocator, start)
        except TRIPPED as error:
            raise Contradiction("in the segments that it began with") from error
        self.sizes = [segment.total_size for segment in start.segments]
        self._told: list[SegmentEvent] = []
        self.allocator.observer = lambda *event: self._told.append(SegmentEvent(*event))

    def all(self, trace: Trace, streams: Sequence[int]) -> None:
        """Every entry in order; ``streams`` as in :class:`Start`.

        Raises:
            Contradiction: the simulation cannot follow.
        """
        actions, addresses, sizes = trace.action.tolist(), trace.address.tolist(), trace.size.tolist()
        self._actions, self._addresses, self._sizes, self._streams = actions, addresses, sizes, streams
        blocks, free = self._blocks, self.allocator.free
        waiting: list[int] = []  # entries that belong to the next allocation, or to none
        index = 0
        try:
            for index, action in enumerate(actions):
                if action == Action.ALLOC or action == Action.OOM:
                    self._allocate(index, waiting)
                    waiting.clear()
                elif action == Action.FREE_REQUESTED:
                    if waiting:
                        self._by_themselves(waiting)
                    address = addresses[index]
                    if self._is_plain(index):
                        free(blocks.pop(address))
                    else:
                        self.allocator.free_requested(blocks[address])
                elif action <= Action.SEGMENT_UNMAP and not (
                        action == Action.FREE_COMPLETED and self._is_plain(index - 1)):
                    waiting.append(index)
            self._by_themselves(waiting)
        except TRIPPED as error:
            raise Contradiction(f"at entry {index:,}, {self._text(index)}") from error

    def _is_plain(self, index: int) -> bool:
        """Whether a block was freed for good when that was requested, so that the next two entries are one step.

        If the allocator then gave memory back or failed, it may have waited for the block on that occasion.
        """
        actions, addresses = self._actions, self._addresses
        return (actions[index:index + 2] == PLAIN and addresses[index] == addresses[index + 1]
                and (index + 2 == len(actions) or actions[index + 2] in AFTER_PLAIN))

    # --- one allocation ---------------------------------------------------------------------------------------

    def _allocate(self, index: int, waiting: Sequence[int]) -> None:
        """An allocation, or one that failed, with what the allocator did on the way to it."""
        fails, size, stream = self._actions[index] == Action.OOM, self._sizes[index], self._stream(index)
        later: list[int] = []
        if self._was_short(index, waiting):
            if self._handles:
                later = [i for i in waiting if self._actions[i] not in NEW]
            else:
                self._leave_to_simulation(waiting, size, stream)
        else:
            self._do(waiting)
        self.driver.expect(Question(self._answers(waiting), fails, self._count_given_back,
                                    at_first=lambda: self._undergo(later), at_no=self._give_up,
                                    later=lambda: self._mapped_later(index)))
        block = self._malloc(size, stream, waiting)
        self._undergo(later)
        allocator_events.synchronize_and_free(self.allocator)
        self._compare(index, waiting)
        recorded = "none: out of memory" if fails else hex(self._addresses[index])
        simulated = "none: out of memory" if block is None else hex(block.address)
        if recorded != simulated:
            self._diverge(index, f"a block at address {recorded}", f"at address {simulated}")
        if fails and block is not None:
            self.allocator.free(block)
        elif not fails:
            if block is None:  # go on, with memory that the recorded driver did not give
                self.driver.expect(Question())
                try:
                    block = self.allocator.malloc(size, stream)
                except OutOfMemory:  # LARGEST_REQUEST
                    raise Contradiction(
                        f"at entry {index:,}, {self._text(index)}, which PyTorch never gives") from None
                self._compare(index, ())
            self._blocks[self._addresses[index]] = block

    def _malloc(self, size: int, stream: int, waiting: Sequence[int]) -> Block | None:
        """A block, or None if there is none to be had; tried again where that may depend on the order."""
        try:
            return self.allocator.malloc(size, stream) if size else None
        except (OutOfMemory, Refused):
            return None
        except RuntimeError:  # what PyTorch cannot do either: settings that are not those of the recording
            return None
        except TooEarly:
            allocator_events.synchronize_and_free(self.allocator)
            self._do(i for i in waiting if self._actions[i] in GIVEN_BACK)
            return self._malloc(size, stream, ()) if waiting else None

    def _was_short(self, index: int, waiting: Sequence[int]) -> bool:
        """Whether the allocator gave back memory because it was refused some, after its search for a free block.

        The history shows the same for a call of ``empty_cache()`` before the allocation. If the search would find
        something as things are, it was such a call. If it finds nothing, the two only differ where frees that wait
        here were complete before (see :meth:`_leave_to_simulation`). Garbage is collected before the driver is asked.
        """
        actions = {self._actions[i] for i in waiting}
        fails = self._actions[index] == Action.OOM
        gives_back = not actions.isdisjoint(GIVEN_BACK) or fails and Action.FREE_COMPLETED in actions
        return (gives_back and (fails or not actions.isdisjoint(NEW)) and not self._collects
                and not self._finds(self._sizes[index], self._stream(index)))

    def _stream(self, index: int) -> int:
        """The stream of an allocation. Of one that failed, the pool is not recorded: it was one with no room."""
        stream, size = self._streams[index], self._sizes[index]
        if self._actions[index] == Action.ALLOC or not self._handles:
            return stream
        pools = [stream, *(number for number, handle in self._handles.items() if handle == stream)]
        return next((number for number in pools if not self._finds(size, number)), stream)

    def _finds(self, size: int, stream: int) -> bool:
        """Whether a free block would serve a request as things are (``get_free_block``)."""
        size = round_to_division(size, self._divisions)
        arena = self.allocator.arena(size <= SMALL_SIZE, stream)
        best = choose(self.allocator, arena, size, bisect_left(arena.keys, size << ADDRESS_BITS))
        return best < len(arena.keys) or self.allocator.settings.expandable_segments and _has_mapped(arena, size)

    def _leave_to_simulation(self, waiting: Sequence[int], size: int, stream: int) -> None:
        """Deferred frees complete when the simulation waits for them; it gives back what it finds.

        It does not wait where oversize blocks of the same stream are enough (``release_available_cached_blocks``):
        the frees were complete before the search. If the search would then find a block, it came after a call of
        ``empty_cache()`` that took this block away.
        """
        limit = self.allocator.settings.max_split_size_bytes
        given_back = [i for i in waiting if self._actions[i] in GIVEN_BACK]
        waited = not given_back or any(
            self._actions[i] == Action.SEGMENT_UNMAP or self._sizes[i] < limit or self._streams[i] != stream
            for i in given_back)
        completed = [i for i in waiting if self._actions[i] == Action.FREE_COMPLETED]
        if not waited:
            self._do(completed)
            return self._do(given_back) if self._finds(size, stream) else None
        for i in completed:
            allocator_events.insert(self.allocator, self._blocks.pop(self._addresses[i]), {stream})

    def _undergo(self, later: list[int]) -> None:
        now, later[:] = list(later), []
        self._do(now)

    def _answers(self, waiting: Iterable[int]) -> Iterable[Answer]:
        after = 0
        for i in waiting:
            if self._actions[i] in NEW:
                yield Answer(self._addresses[i], self._sizes[i], after)
            after += self._actions[i] in GIVEN_BACK

    def _mapped_later(self, index: int) -> int | None:
        """Where the range begins that a failed allocation reserved: it stays, and is mapped from its beginning later.

        That is the next address mapped for the pool and stream that is in none of its other ranges.
        """
        if self._maps is None:
            self._maps = {}
            for i, action in enumerate(self._actions):
                if action == Action.SEGMENT_MAP:  # for the small pool always one page
                    self._maps.setdefault((self._sizes[i] == SMALL_SEGMENT, self._streams[i]), []).append(i)
        size, stream = round_to_division(self._sizes[index], self._divisions), self._streams[index]
        arena = self.allocator.arena(size <= SMALL_SIZE, stream)
        ranges = {block.expandable for block in arena.unmapped.values()}
        maps = self._maps.get((size <= SMALL_SIZE, stream), [])
        for i in maps[bisect_left(maps, index):]:
            if not any(known.address <= self._addresses[i] < known.address + known.size for known in ranges):
                return self._addresses[i]
        return None

    def _count_given_back(self) -> int:
        return sum(event.action in GIVEN_BACK.values() for event in self._told)

    def _give_up(self) -> None:
        """With private pools, what is given back is known from the history only."""
        if self._handles:
            raise Refused

    # --- what is not an allocation ----------------------------------------------------------------------------

    def _do(self, waiting: Iterable[int]) -> None:
        """Completes frees and gives memory back."""
        for i in waiting:
            if self._actions[i] == Action.FREE_COMPLETED:
                self.allocator.free_completed(self._blocks.pop(self._addresses[i]))
            elif self._actions[i] in GIVEN_BACK:
                try:
                    self.allocator.release_segment(self._addresses[i])
                except (ValueError, RuntimeError):
                    self._diverge(i, self._text(i), "that is not a free segment")

    def _by_themselves(self, waiting: list[int]) -> None:
        """Entries that no allocation followed."""
        if waiting:
            self._do(waiting)
            self._compare(waiting[0], waiting)
            waiting.clear()

    def _compare(self, index: int, waiting: Sequence[int]) -> None:
        """The segments of one step, recorded and simulated; in which order they were given back does not count."""
        if not waiting and not self._told:
            return
        names = NEW | GIVEN_BACK
        recorded = [SegmentEvent(names[self._actions[i]], self._addresses[i], self._sizes[i], self._streams[i])
                    for i in waiting if self._actions[i] in names]
        told, self._told[:] = list(self._told), []
        self.sizes += [event.size for event in told if event.action in NEW.values()]
        for kind, order in ((GIVEN_BACK.values(), sorted), (NEW.values(), list)):
            one, two = (order(event for event in events if event.action in kind) for events in (recorded, told))
            if one != two:
                self._diverge(index, events_text(one), events_text(two))

    def compare_end(self, segments: Iterable[Segment]) -> None:
        """The segments and blocks that the recording lists at its end."""
        recorded = {segment.address: layout(segment, segment.stream) for segment in segments}
        simulated = {segment.address: layout(segment, self._handles.get(segment.stream, segment.stream))
                     for segment in self.allocator.snapshot_segments()}
        for address in sorted(recorded.keys() | simulated.keys()):
            one, two = recorded.get(address), simulated.get(address)
            if one != two:
                self._diverge(None, f"the segment at {address:#x} has {blocks_text(one)}", blocks_text(two))

    def _diverge(self, index: int | None, recorded: str, simulated: str) -> None:
        if self.divergence is None:
            self.divergence = Divergence(index, recorded, simulated)

    def _text(self, i: int) -> str:
        return f"{Action(self._actions[i]).name.lower()} of {self._sizes[i]:,} bytes at {self._addresses[i]:#x}"


def _has_mapped(arena: Arena, size: int) -> bool:
    """Whether an expandable segment serves a request without new pages, from a block that the search passed over.

    Blocks from ``max_split_size`` on are passed over; then the first range with room is taken, and in it the free
    block before the unmapped addresses (``find_expandable_block``).
    """
    for address in arena.unmapped_addresses:
        unmapped = arena.unmapped[address]
        before = unmapped.prev
        mapped = before.size if before is not None and before.state == FREE else 0
        if mapped >= size:
            return True
        if mapped + unmapped.size >= size:
            return False
    return False
