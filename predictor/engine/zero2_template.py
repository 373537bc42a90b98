"""Templates of micro-steps under ZeRO-1 or ZeRO-2: the events of all ranks, from which those of one rank are selected.

Ranks differ only in the gradients that they keep. So a micro-step is composed once with every event that some rank has.
:meth:`Template.play` leaves out the events that a rank does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from predictor.engine.compose import Vocabulary
from predictor.engine.tape import Rise, Rises, Tape
from predictor.events.events import Buffers, Factor, Moment, sign
from predictor.events.micro_step import MicroStep


@dataclass(frozen=True)
class Reduced:
    """The gradients that a micro-step reduces, one row each, in the order of the reductions.

    Attributes:
        parameters: the parameter of each gradient.
        gradients: its buffer in the traced micro-step.
        flush_of: the number of its reduction.
    """

    parameters: list[int]
    gradients: list[int]
    flush_of: list[int]


@dataclass(frozen=True, eq=False)
class HostCopies:
    """Copies of gradients to the host.

    Attributes:
        events: rank -> the events that only this rank has.
        norms: rank -> buffers of its gradients' norms.
    """

    events: dict[int, np.ndarray]
    norms: Mapping[int, Sequence[int]]

    @cached_property
    def events_of_all(self) -> np.ndarray:
        """The events of all ranks."""
        return np.concatenate([*self.events.values(), np.empty(0, np.int64)])


@dataclass(frozen=True, eq=False)
class ByRank:
    """Events of a micro-step that only some ranks have.

    Each number is the position of an event. While a tape is recorded, it is the event's row of the tape. :meth:`woven`
    turns it into the event's position in the template.

    Attributes:
        partition: one event for each reduction. In it, a rank allocates its partition buffer if this reduction has the
            first gradient that the rank owns a part of. Empty without contiguous gradients.
        release: row of :class:`Reduced` -> the event in which ranks that own no part of the gradient free it.
        move: row of :class:`Reduced` -> the event in which ranks that own a part of the gradient free it, after it was
            copied to the partition buffer.
        use: number of a reduction -> the event in which the reduction stream uses the bucket, on ranks that own a part
            of a gradient in this reduction.
    """

    partition: list[int] = field(default_factory=list)
    release: dict[int, int] = field(default_factory=dict)
    move: dict[int, int] = field(default_factory=dict)
    use: dict[int, int] = field(default_factory=dict)

    def woven(self, places: np.ndarray) -> ByRank:
        """The same with events of a template. ``places`` gives the event of each row of the tape."""
        def events(rows: Mapping[int, int]) -> dict[int, int]:
            return {key: int(places[row]) for key, row in rows.items()}

        return ByRank(places[self.partition].tolist(), events(self.release), events(self.move), events(self.use))

    def events(self) -> list[int]:
        """All these events."""
        return [*self.partition, *self.release.values(), *self.move.values(), *self.use.values()]

    def leave_out(self, keep: np.ndarray, mine: Sequence[int], reduced: Reduced) -> None:
        """Clears in ``keep`` the events that a rank does not have. Its partition buffer is allocated at most once.

        Args:
            keep: ``bool[events]`` of the template.
            mine: rows of :class:`Reduced` whose gradients the rank owns a part of.
        """
        keep[self.partition] = False
        if self.partition and mine:
            keep[self.partition[reduced.flush_of[mine[0]]]] = True
        keep[[self.release[row] for row in mine if row in self.release]] = False
        keep[[self.move[row] for row in self.move.keys() - set(mine)]] = False
        foreign = self.use.keys() - {reduced.flush_of[row] for row in mine}
        keep[[self.use[flush] for flush in foreign]] = False


@dataclass(frozen=True, eq=False)
class Template:
    """A micro-step with the events of all ranks.

    Attributes:
        columns: ``int32[3, events]``: event type, buffer, moment. Engine buffers are numbered after the traced ones;
            ``~n`` is buffer ``n`` of the first micro-step.
        micro_steps: number of micro-steps of the step.
        passing: ``bool[events]``: whether the event's buffer is not persistent.
        buffers: the engine's buffers; the first is the partition buffer, without its size.
        buffer_bytes: their sizes in bytes.
        reduced: the gradients that it reduces; None if it reduces none.
        accumulates: whether gradients accumulate over all micro-steps. Then the first micro-step's buckets are used.
        itemsize: bytes of a gradient's element.
        by_rank: events that only some ranks have.
        host: copies to the host; None if gradients stay on the GPU.
    """

    micro: MicroStep
    vocabulary: Vocabulary
    columns: np.ndarray
    micro_steps: int
    passing: np.ndarray
    buffers: Buffers
    buffer_bytes: np.ndarray
    reduced: Reduced | None
    accumulates: bool
    itemsize: int
    by_rank: ByRank
    host: HostCopies | None = None

    def change(self, traced_bytes: np.ndarray) -> np.ndarray:
        """Bytes by which each event changes the live bytes. The partition buffer counts as 0 bytes.

        Args:
            traced_bytes: the size of each traced buffer, in bytes.
        """
        buffer = self.columns[1]
        return np.concatenate([traced_bytes, self.buffer_bytes])[np.where(buffer < 0, ~buffer, buffer)] * sign(
            self.columns[0])

    @cached_property
    def places(self) -> np.ndarray:
        """The first event, and those that only some ranks have, in order."""
        host = np.empty(0, np.int64) if self.host is None else self.host.events_of_all
        return np.unique(np.concatenate([[0], self.by_rank.events(), host]).astype(np.int64))

    def shared(self, index: int, change: np.ndarray) -> SharedRises:
        """What ranks have in common of the rises of micro-step ``index``.

        Args:
            change: the result of :meth:`change`.
        """
        def between(keep: np.ndarray) -> tuple[np.ndarray, int]:
            events = np.where(keep, change, 0)
            events[self.places] = 0
            live = np.cumsum(events)
            return np.maximum.reduceat(live, self.places), int(live[-1])

        return SharedRises(change[self.places], between(self.passing if index else np.ones_like(self.passing)),
                           between(self.passing))

    def play(self, index: int, first: int, rank: int, group_of: Mapping[int, int],
             numel_of: Mapping[int, int]) -> RankMicroStep:
        """Micro-step ``index`` on a rank, with its engine buffers numbered from ``first``.

        Args:
            group_of: parameter that the rank owns a part of -> its optimizer group.
            numel_of: trainable parameter -> its elements.
        """
        keep = self.passing.copy() if index else np.ones_like(self.passing)
        tape = Tape(first=first + len(self.buffers), moment=Moment.BACKWARD)
        if self.reduced is None:
            return RankMicroStep(self, index, first, keep, None, tape, {})
        mine = [row for row, parameter in enumerate(self.reduced.parameters) if parameter in group_of]
        self.by_rank.leave_out(keep, mine, self.reduced)
        if self.host is not None:
            keep[self.host.events_of_all] = False
            keep[self.host.events.get(rank, [])] = True
            each = len(self.micro.events.buffers)
            norms = self.host.norms.get(rank, ())
            return RankMicroStep(self, index, first, keep, None, tape,
                        {first + norm - each: max(group_of.values()) for norm in norms})
        partition, held = self._held(index, first, mine, group_of, numel_of)
        unused = group_of.keys() - set(self.reduced.parameters)
        for parameter in sorted(unused, key=lambda parameter: (group_of[parameter], parameter)):  # get_all_grad_tensors
            zeros = tape.allocate(self.itemsize * numel_of[parameter], Factor.GRADIENTS, "zero::get_all_grad_tensors")
            held[zeros] = group_of[parameter]
        if index and not self.accumulates:  # added to the first micro-step's gradients
            for buffer in held:
                tape.free(buffer)
        return RankMicroStep(self, index, first, keep, partition, tape, held)

    def _held(self, index: int, first: int, mine: Sequence[int], group_of: Mapping[int, int],
              numel_of: Mapping[int, int]) -> tuple[PartitionBuffer | None, dict[int, int]]:
        """The partition buffer of a :class:`RankMicroStep`, and its gradients, if they stay on the GPU."""
        reduced, partitions = self.reduced, self.by_rank.partition
        assert reduced is not None  # play() has checked it
        if not partitions:
            origin = 0 if self.accumulates else index * len(self.micro.events.buffers)
            return None, {reduced.gradients[row] + origin: group_of[reduced.parameters[row]] for row in mine}
        if not mine:
            return None, {}
        event = partitions[reduced.flush_of[mine[0]]]
        size_bytes = self.itemsize * sum(numel_of[parameter] for parameter in group_of)
        return PartitionBuffer(event, size_bytes), {first: max(group_of.values())}  # shared by all groups


class SharedRises(NamedTuple):
    """Rises of live bytes, but for the events at :attr:`Template.places`, which a rank may not have.

    Attributes:
        change: ``int64[places]``: bytes by which the events there change the live bytes of a rank that has them.
        first: of the first step, the highest live bytes from each place to the next, and those at the end.
        later: the same of a later step.
    """

    change: np.ndarray
    first: tuple[np.ndarray, int]
    later: tuple[np.ndarray, int]


class PartitionBuffer(NamedTuple):
    """The buffer of a rank's partition of the gradients: the event that allocates it, and its size in bytes."""

    event: int
    size_bytes: int


@dataclass(frozen=True, eq=False)
class RankMicroStep:
    """One micro-step of one rank.

    Attributes:
        index: number of the micro-step in its optimizer step.
        first: number of its first engine buffer.
        keep: ``bool[events]``: which events of the template it has in the first step.
        partition: the partition buffer; None if it has none.
        tape: the events after those of the template.
        held: buffer of a gradient -> the last optimizer group whose update needs it.
    """

    template: Template
    index: int
    first: int
    keep: np.ndarray
    partition: PartitionBuffer | None
    tape: Tape
    held: dict[int, int]

    @property
    def buffers(self) -> Buffers:
        """The engine's buffers."""
        vocabulary, buffers = self.template.vocabulary, self.template.buffers
        if self.partition:
            size = buffers.size.copy()
            size[0] = vocabulary.size(self.partition.size_bytes)
            buffers = replace(buffers, size=size)
        return Buffers.concatenate([buffers, vocabulary.buffers(self.tape.buffers)])

    @property
    def end(self) -> int:
        """The number after that of its last engine buffer."""
        return self.tape.first + len(self.tape.buffers)

    def columns(self) -> np.ndarray:
        """``int32[3, events]``: event type, buffer, moment."""
        each = len(self.template.micro.events.buffers)
        event_type, number, moment = self.template.columns[:, self.keep]
        buffer = np.where(number < each, number + self.index * each, number - each + self.first)
        first = np.where(~number < each, ~number, ~number + (self.template.micro_steps - 1) * each)
        buffer = np.where(number < 0, first, buffer)
        return np.concatenate([np.stack([event_type, buffer, moment]), self.tape.columns()[:3]], axis=1)

    def first_step_mask(self) -> np.ndarray:
        """``bool[events]``: whether only the first step has the event."""
        return np.concatenate([~self.template.passing[self.keep], self.tape.first_step_mask()])

    def rises(self, shared: SharedRises, traced_bytes: np.ndarray) -> Rises:
        """The rises of live bytes in the first step and in a later one.

        Args:
            shared: the result of :meth:`Template.shared`.
            traced_bytes: the size of each traced buffer, in bytes.
        """
        result = []
        tape, places = self.tape.rises(lambda buffer: self.held_bytes(buffer, traced_bytes)), self.template.places
        keep = self.keep[places]
        for kept, (highest, growth), rise in zip((keep, keep & self.template.passing[places]),
                                                 (shared.first, shared.later), tape):
            own = np.where(kept, shared.change, 0)
            if self.partition:
                own[np.searchsorted(places, self.partition.event)] = self.partition.size_bytes
            live = np.cumsum(own)
            end = int(live[-1]) + growth
            result.append(Rise(max(int((live + highest).max()), end + rise.highest), end + rise.growth))
        return Rises(*result)

    def held_bytes(self, buffer: int, traced_bytes: np.ndarray) -> int:
        """Bytes of a buffer of :attr:`held`."""
        if self.partition and buffer == self.first:
            return self.partition.size_bytes
        if buffer >= self.tape.first:
            return self.tape.buffers.sizes[buffer - self.tape.first]
        if buffer >= self.first:
            return int(self.template.buffer_bytes[buffer - self.first])
        return int(traced_bytes[buffer % len(traced_bytes)])
