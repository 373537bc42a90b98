"""Runs the simulated allocator over a recorded history once and compares each decision."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from predictor.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemory
from predictor.allocator.blocks import ADDRESS_BITS, FREE, Arena
from predictor.allocator.constants import SMALL_SEGMENT, SMALL_SIZE
from predictor.allocator.search import choose
from predictor.allocator.sizes import round_to_division
from predictor.snapshot.initial_state import Start
from predictor.snapshot.recorded_driver import DriverGrant, RecordedDriver, RecordedRequest, Refused, TooEarly
from predictor.snapshot.records import Action, Segment, Trace
from predictor.snapshot.replay_messages import SegmentEvent, blocks_text, events_text, layout
from predictor.snapshot.warm_start import seed

NEW = {Action.SEGMENT_ALLOC: "segment_alloc", Action.SEGMENT_MAP: "segment_map"}
GIVEN_BACK = {Action.SEGMENT_FREE: "segment_free", Action.SEGMENT_UNMAP: "segment_unmap"}
PLAIN = [Action.FREE_REQUESTED, Action.FREE_COMPLETED]
AFTER_PLAIN = frozenset((Action.ALLOC, Action.FREE_REQUESTED, Action.SEGMENT_ALLOC))
TRIPPED = (AssertionError, AttributeError, LookupError, RuntimeError, ValueError)
"""Exceptions of the simulation when a history breaks a rule that it relies on."""


class Contradiction(Exception):
    """The history has an entry that no allocator could produce. The message names it."""


@dataclass(frozen=True)
class Divergence:
    """The first decision of the simulation that differs from the recording. ``entry`` is None for the final state."""

    entry: int | None
    recorded: str
    simulated: str


class Run:
    """One replay: the simulated allocator, the recorded blocks by address, and the first divergence."""

    def __init__(self, settings: AllocatorSettings, start: Start, total_bytes: int | None = None) -> None:
        # The history already contains the effects of limits (refusals) and of garbage collection (released segments).
        rules = replace(settings, garbage_collection_threshold=0.0, per_process_memory_fraction=1.0)
        self._collects = settings.garbage_collection_threshold > 0
        self._divisions = settings.roundup_power2_divisions
        self._handles = start.handles
        self._maps: dict[tuple[bool, int], list[int]] | None = None  # (is small, stream) -> its SEGMENT_MAP entries
        self.driver = RecordedDriver(total_bytes)
        self.allocator = CachingAllocator(rules, self.driver, completion="synchronization")
        self.divergence: Divergence | None = None
        try:
            self._blocks = seed(self.allocator, start)
        except TRIPPED as error:
            raise Contradiction("in the segments that it began with") from error
        self.sizes = [segment.total_size for segment in start.segments]
        self._events: list[SegmentEvent] = []  # of the simulation, since the last comparison
        self.allocator.observer = lambda *event: self._events.append(SegmentEvent(*event))

    def replay_entries(self, trace: Trace, streams: Sequence[int]) -> None:
        """Replays every entry in order. ``streams`` has the stream numbers of :class:`Start`.

        Raises:
            Contradiction: the simulation cannot do what an entry says.
        """
        actions, addresses, sizes = trace.action.tolist(), trace.address.tolist(), trace.size.tolist()
        self._actions, self._addresses, self._sizes, self._streams = actions, addresses, sizes, streams
        blocks, free = self._blocks, self.allocator.free
        waiting: list[int] = []  # entries that belong to the next allocation, or to no allocation
        index = 0
        try:
            for index, action in enumerate(actions):
                if action == Action.ALLOC or action == Action.OOM:
                    self._allocate(index, waiting)
                    waiting.clear()
                elif action == Action.FREE_REQUESTED:
                    if waiting:
                        self._replay_waiting(waiting)
                    address = addresses[index]
                    if self._is_plain(index):
                        free(blocks.pop(address))
                    else:
                        self.allocator.free_requested(blocks[address])
                elif action <= Action.SEGMENT_UNMAP and not (
                        action == Action.FREE_COMPLETED and self._is_plain(index - 1)):
                    waiting.append(index)
            self._replay_waiting(waiting)
        except TRIPPED as error:
            raise Contradiction(f"at entry {index:,}, {self._text(index)}") from error

    def _is_plain(self, index: int) -> bool:
        """Whether the block was free as soon as its free was requested: then this entry and the next are one step.

        The entry after these must not show that the allocator gave memory back or failed: it may then have waited for
        the block.
        """
        actions, addresses = self._actions, self._addresses
        return (actions[index:index + 2] == PLAIN and addresses[index] == addresses[index + 1]
                and (index + 2 == len(actions) or actions[index + 2] in AFTER_PLAIN))

    # --- allocations ------------------------------------------------------------------------------------------

    def _allocate(self, index: int, waiting: Sequence[int]) -> None:
        """Replays an allocation, successful or not, with the ``waiting`` entries that led to it."""
        fails, size, stream = self._actions[index] == Action.OOM, self._sizes[index], self._stream(index)
        later: list[int] = []
        if self._was_short(index, waiting):
            if self._handles:
                later = [i for i in waiting if self._actions[i] not in NEW]
            else:
                self._leave_to_simulation(waiting, size, stream)
        else:
            self._apply(waiting)
        self.driver.expect(RecordedRequest(self._grants(waiting), fails, self._count_given_back,
                                           at_first=lambda: self._apply_once(later), at_refusal=self._give_up,
                                           reserved_range=lambda: self._mapped_later(index)))
        block = self._malloc(size, stream, waiting)
        self._apply_once(later)
        self.allocator.synchronize_and_free_events()
        self._compare(index, waiting)
        recorded = "none: out of memory" if fails else hex(self._addresses[index])
        simulated = "none: out of memory" if block is None else hex(block.address)
        if recorded != simulated:
            self._diverge(index, f"a block at address {recorded}", f"at address {simulated}")
        if fails and block is not None:
            self.allocator.free(block)
        elif not fails:
            if block is None:  # continue with memory that the recorded driver did not give
                self.driver.expect(RecordedRequest())
                try:
                    block = self.allocator.malloc(size, stream)
                except OutOfMemory:  # LARGEST_REQUEST
                    raise Contradiction(
                        f"at entry {index:,}, {self._text(index)}, which PyTorch never allocates") from None
                self._compare(index, ())
            self._blocks[self._addresses[index]] = block

    def _malloc(self, size: int, stream: int, waiting: Sequence[int]) -> Block | None:
        """Allocates a block in the simulation, or returns None if that fails.

        If the range of an expandable segment is not free yet, it gives memory back as recorded and tries again.
        """
        try:
            return self.allocator.malloc(size, stream) if size else None
        except (OutOfMemory, Refused):
            return None
        except RuntimeError:  # PyTorch would fail here, too: the settings are not those of the recording
            return None
        except TooEarly:
            self.allocator.synchronize_and_free_events()
            self._apply(i for i in waiting if self._actions[i] in GIVEN_BACK)
            return self._malloc(size, stream, ()) if waiting else None

    def _was_short(self, index: int, waiting: Sequence[int]) -> bool:
        """Whether the allocator gave memory back because the driver refused, after its search for a free block.

        A call of ``empty_cache()`` before the allocation leaves the same history. If the search would find a block in
        the present state, it was such a call. If not, the two cases only differ where deferred frees were complete
        before (see :meth:`_leave_to_simulation`). With garbage collection, memory is given back before the driver is
        called; such entries are applied as recorded.
        """
        actions = {self._actions[i] for i in waiting}
        fails = self._actions[index] == Action.OOM
        gives_back = not actions.isdisjoint(GIVEN_BACK) or fails and Action.FREE_COMPLETED in actions
        return (gives_back and (fails or not actions.isdisjoint(NEW)) and not self._collects
                and not self._finds(self._sizes[index], self._stream(index)))

    def _stream(self, index: int) -> int:
        """The stream number of an allocation.

        The history does not contain the pool of a failed allocation. It is taken to be the first without room.
        """
        stream, size = self._streams[index], self._sizes[index]
        if self._actions[index] == Action.ALLOC or not self._handles:
            return stream
        pools = [stream, *(number for number, handle in self._handles.items() if handle == stream)]
        return next((number for number in pools if not self._finds(size, number)), stream)

    def _finds(self, size: int, stream: int) -> bool:
        """Whether the search for a free block would succeed in the present state (``get_free_block``)."""
        size = round_to_division(size, self._divisions)
        arena = self.allocator.arena(size <= SMALL_SIZE, stream)
        best = choose(self.allocator, arena, size, bisect_left(arena.keys, size << ADDRESS_BITS))
        return best < len(arena.keys) or self.allocator.settings.expandable_segments and _has_mapped(arena, size)

    def _leave_to_simulation(self, waiting: Sequence[int], size: int, stream: int) -> None:
        """Prepares an allocation before which the simulation itself decides which memory to give back.

        Deferred frees become complete when the simulation waits for their events. It does not wait where oversize
        blocks of the same stream are enough (``release_available_cached_blocks``): then the frees were complete before
        the search. If the search would find a block after them, a call of ``empty_cache()`` had released this block.
        """
        limit = self.allocator.settings.max_split_size_bytes
        given_back = [i for i in waiting if self._actions[i] in GIVEN_BACK]
        waited = not given_back or any(
            self._actions[i] == Action.SEGMENT_UNMAP or self._sizes[i] < limit or self._streams[i] != stream
            for i in given_back)
        completed = [i for i in waiting if self._actions[i] == Action.FREE_COMPLETED]
        if not waited:
            self._apply(completed)
            return self._apply(given_back) if self._finds(size, stream) else None
        for i in completed:
            self.allocator.outstanding.insert(self._blocks.pop(self._addresses[i]), {stream})

    def _apply_once(self, entries: list[int]) -> None:
        """Applies entries and empties the list, so that a second call does nothing."""
        pending, entries[:] = list(entries), []
        self._apply(pending)

    def _grants(self, waiting: Iterable[int]) -> Iterable[DriverGrant]:
        after = 0
        for i in waiting:
            if self._actions[i] in NEW:
                yield DriverGrant(self._addresses[i], self._sizes[i], after)
            after += self._actions[i] in GIVEN_BACK

    def _mapped_later(self, index: int) -> int | None:
        """The beginning of the range that a failed allocation reserved. The range stays and is mapped later.

        It is the next address mapped for the pool and stream that is in none of its known ranges.
        """
        if self._maps is None:
            self._maps = {}
            for i, action in enumerate(self._actions):
                if action == Action.SEGMENT_MAP:  # the small pool always maps one page
                    self._maps.setdefault((self._sizes[i] == SMALL_SEGMENT, self._streams[i]), []).append(i)
        size, stream = round_to_division(self._sizes[index], self._divisions), self._streams[index]
        arena = self.allocator.arena(size <= SMALL_SIZE, stream)
        ranges = {block.expandable for block in arena.unmapped.values() if block.expandable is not None}
        maps = self._maps.get((size <= SMALL_SIZE, stream), [])
        for i in maps[bisect_left(maps, index):]:
            if not any(known.address <= self._addresses[i] < known.address + known.size for known in ranges):
                return self._addresses[i]
        return None

    def _count_given_back(self) -> int:
        return sum(event.action in GIVEN_BACK.values() for event in self._events)

    def _give_up(self) -> None:
        """Stops the allocation if there are private pools: only the history tells which of their memory is released."""
        if self._handles:
            raise Refused

    # --- other entries ----------------------------------------------------------------------------------------

    def _apply(self, entries: Iterable[int]) -> None:
        """Completes frees and gives memory back, as the entries say."""
        for i in entries:
            if self._actions[i] == Action.FREE_COMPLETED:
                self.allocator.free_completed(self._blocks.pop(self._addresses[i]))
            elif self._actions[i] in GIVEN_BACK:
                try:
                    self.allocator.release_segment(self._addresses[i])
                except (ValueError, RuntimeError):
                    self._diverge(i, self._text(i), "that is not a free segment")

    def _replay_waiting(self, waiting: list[int]) -> None:
        """Replays entries that no allocation followed, and empties the list."""
        if waiting:
            self._apply(waiting)
            self._compare(waiting[0], waiting)
            waiting.clear()

    def _compare(self, index: int, waiting: Sequence[int]) -> None:
        """Compares the recorded and simulated segment events of one step. The order of releases does not matter."""
        if not waiting and not self._events:
            return
        names = NEW | GIVEN_BACK
        recorded = [SegmentEvent(names[self._actions[i]], self._addresses[i], self._sizes[i], self._streams[i])
                    for i in waiting if self._actions[i] in names]
        simulated, self._events[:] = list(self._events), []
        self.sizes += [event.size for event in simulated if event.action in NEW.values()]
        for actions, is_ordered in ((GIVEN_BACK.values(), False), (NEW.values(), True)):
            expected, actual = ([event for event in events if event.action in actions]
                                for events in (recorded, simulated))
            if not is_ordered:
                expected.sort()
                actual.sort()
            if expected != actual:
                self._diverge(index, events_text(expected), events_text(actual))

    def compare_end(self, segments: Iterable[Segment]) -> None:
        """Compares the final state of the simulation with the segments and blocks that the snapshot lists."""
        recorded = {segment.address: layout(segment, segment.stream) for segment in segments}
        simulated = {segment.address: layout(segment, self._handles.get(segment.stream, segment.stream))
                     for segment in self.allocator.snapshot_segments()}
        for address in sorted(recorded.keys() | simulated.keys()):
            expected, actual = recorded.get(address), simulated.get(address)
            if expected != actual:
                self._diverge(None, f"the segment at {address:#x} has {blocks_text(expected)}", blocks_text(actual))

    def _diverge(self, index: int | None, recorded: str, simulated: str) -> None:
        if self.divergence is None:
            self.divergence = Divergence(index, recorded, simulated)

    def _text(self, i: int) -> str:
        return f"{Action(self._actions[i]).name.lower()} of {self._sizes[i]:,} bytes at {self._addresses[i]:#x}"


def _has_mapped(arena: Arena, size: int) -> bool:
    """Whether an expandable segment can serve a request without new pages, from a block that the search skipped.

    The search skips blocks of ``max_split_size`` or more. Then the allocator takes the first range with room, and in it
    the free block before the unmapped addresses (``find_expandable_block``).
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
