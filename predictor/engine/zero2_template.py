"""A micro-step under ZeRO-1 or ZeRO-2 with the events of all ranks, and what one rank has of it.

Ranks differ only in which gradients they keep. So a micro-step is woven once with every event that some rank has, and
playing it for a rank leaves out those that are not its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from predictor.engine.compose import Rise, Rises, Tape, Vocabulary
from predictor.events.events import Buffers, Factor, Moment, sign
from predictor.events.micro_step import MicroStep


@dataclass(frozen=True)
class Reduced:
    """The gradients that a micro-step reduces, one row each, in the order of the reductions.

    Attributes:
        parameters: whose they are.
        gradients: their buffers in the traced micro-step.
        flush_of: the reduction that each is part of.
    """

    parameters: list[int]
    gradients: list[int]
    flush_of: list[int]


@dataclass(frozen=True, eq=False)
class HostCopies:
    """Copies of gradients to the host.

    Attributes:
        events: for each rank, those that it alone has.
        norms: for each rank, the buffers of its gradients' norms.
    """

    events: dict[int, np.ndarray]
    norms: Mapping[int, Sequence[int]]

    @cached_property
    def events_of_all(self) -> np.ndarray:
        """Of all ranks."""
        return np.concatenate([*self.events.values(), np.empty(0, np.int64)])


@dataclass(frozen=True, eq=False)
class ByRank:
    """Events that only some ranks have: rows of a tape while it is written, then events of a template.

    Attributes:
        partition: for each reduction, where the partition buffer is allocated by a rank whose first gradient is in it;
            empty without contiguous gradients.
        release: for some rows of :class:`Reduced`, where ranks that do not own the gradient free it.
        move: for some rows, where ranks that own the gradient free it: it moved to the partition buffer.
        use: for some reductions, where ranks that own a part of it use its bucket on the reduction stream.
    """

    partition: list[int] = field(default_factory=list)
    release: dict[int, int] = field(default_factory=dict)
    move: dict[int, int] = field(default_factory=dict)
    use: dict[int, int] = field(default_factory=dict)

    def woven(self, places: np.ndarray) -> ByRank:
        """The same where each row of the tape went."""
        def events(rows: Mapping[int, int]) -> dict[int, int]:
            return {of: int(places[row]) for of, row in rows.items()}

        return ByRank(places[self.partition].tolist(), events(self.release), events(self.move), events(self.use))

    def leave_out(self, keep: np.ndarray, mine: Sequence[int], reduced: Reduced) -> None:
        """Strike what a rank that owns these rows does not have; of the partition buffer it keeps one place at most."""
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
        columns: ``int32[3, events]``; engine buffers follow the traced ones; ``~n`` is the first micro-step's ``n``.
        micro_steps: how many the step has.
        passing: events of buffers that do not stay for good.
        buffers: the engine's; the first is the partition buffer, without its size.
        buffer_bytes: their sizes.
        reduced: the gradients that it reduces; None where it reduces none.
        gathers: whether the gradients are those of all micro-steps; buckets then are the first one's.
        itemsize: bytes of a gradient's element.
        by_rank: events that only some ranks have.
        host: copies to the host; None where gradients stay.
    """

    micro: MicroStep
    vocabulary: Vocabulary
    columns: np.ndarray
    micro_steps: int
    passing: np.ndarray
    buffers: Buffers
    buffer_bytes: np.ndarray
    reduced: Reduced | None
    gathers: bool
    itemsize: int
    by_rank: ByRank
    host: HostCopies | None = None

    def change(self, traced_bytes: np.ndarray) -> np.ndarray:
        """Bytes that each event adds, given those of the traced buffers; the partition buffer counts nothing."""
        buffer = self.columns[1]
        return np.concatenate([traced_bytes, self.buffer_bytes])[np.where(buffer < 0, ~buffer, buffer)] * sign(
            self.columns[0])

    def play(self, index: int, first: int, rank: int, group_of: Mapping[int, int],
             numel_of: Mapping[int, int]) -> Part:
        """Micro-step ``index`` on a rank, its engine buffers numbered from ``first``.

        Args:
            group_of: for each parameter that the rank owns a part of, its optimizer group.
            numel_of: elements of every trainable parameter.
        """
        keep = self.passing.copy() if index else np.ones_like(self.passing)
        tape = Tape(first=first + len(self.buffers), moment=Moment.BACKWARD)
        if self.reduced is None:
            return Part(self, index, first, keep, None, tape, {})
        mine = [row for row, parameter in enumerate(self.reduced.parameters) if parameter in group_of]
        self.by_rank.leave_out(keep, mine, self.reduced)
        if self.host is not None:
            keep[self.host.events_of_all] = False
            keep[self.host.events.get(rank, [])] = True
            each = len(self.micro.events.buffers)
            norms = self.host.norms.get(rank, ())
            return Part(self, index, first, keep, None, tape,
                        {first + norm - each: max(group_of.values()) for norm in norms})
        partition, held = self._held(index, first, mine, group_of, numel_of)
        unused = group_of.keys() - set(self.reduced.parameters)
        for parameter in sorted(unused, key=lambda parameter: (group_of[parameter], parameter)):  # get_all_grad_tensors
            zeros = tape.allocate(self.itemsize * numel_of[parameter], Factor.GRADIENTS, "zero::get_all_grad_tensors")
            held[zeros] = group_of[parameter]
        if index and not self.gathers:  # added into the first micro-step's gradients
            for buffer in held:
                tape.free(buffer)
        return Part(self, index, first, keep, partition, tape, held)

    def _held(self, index: int, first: int, mine: Sequence[int], group_of: Mapping[int, int],
              numel_of: Mapping[int, int]) -> tuple[PartitionBuffer | None, dict[int, int]]:
        """A :class:`Part`'s partition buffer, and its gradients, where they stay on the GPU."""
        reduced, partitions = self.reduced, self.by_rank.partition
        if not partitions:
            origin = 0 if self.gathers else index * len(self.micro.events.buffers)
            return None, {reduced.gradients[row] + origin: group_of[reduced.parameters[row]] for row in mine}
        if not mine:
            return None, {}
        event = partitions[reduced.flush_of[mine[0]]]
        size_bytes = self.itemsize * sum(numel_of[parameter] for parameter in group_of)
        return PartitionBuffer(event, size_bytes), {first: max(group_of.values())}  # for all groups


class PartitionBuffer(NamedTuple):
    """The buffer of a rank's partition of the gradients: the event that allocates it, and its bytes."""

    event: int
    size_bytes: int


@dataclass(frozen=True, eq=False)
class Part:
    """One micro-step of one rank.

    Attributes:
        keep: which events of the template it has, those of the first step included.
        partition: None where there is no such buffer.
        tape: what follows the template's events.
        held: buffers of its gradients -> the last group that needs each.
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
        """The engine's."""
        vocabulary, buffers = self.template.vocabulary, self.template.buffers
        if self.partition:
            size = buffers.size.copy()
            size[0] = vocabulary.size(self.partition.size_bytes)
            buffers = replace(buffers, size=size)
        return Buffers.concatenate([buffers, vocabulary.buffers(self.tape.attributes)])

    @property
    def end(self) -> int:
        """Number of the next engine buffer."""
        return self.tape.first + len(self.tape.attributes)

    def columns(self) -> np.ndarray:
        """``int32[3, events]``: kind, buffer, moment."""
        each = len(self.template.micro.events.buffers)
        kind, said, moment = self.template.columns[:, self.keep]
        buffer = np.where(said < each, said + self.index * each, said - each + self.first)
        first = np.where(~said < each, ~said, ~said + (self.template.micro_steps - 1) * each)
        buffer = np.where(said < 0, first, buffer)
        return np.concatenate([np.stack([kind, buffer, moment]), self.tape.columns()[:3]], axis=1)

    def seldom(self) -> np.ndarray:
        """``bool[events]``: what only the first step has."""
        return np.concatenate([~self.template.passing[self.keep], self.tape.seldom()])

    def rises(self, change: np.ndarray, traced_bytes: np.ndarray) -> Rises:
        """Those of its steps; ``change`` is the template's."""
        result = []
        tape = self.tape.rises(lambda buffer: self.held_bytes(buffer, traced_bytes))
        for keep, rise in zip((self.keep, self.keep & self.template.passing), tape):
            events = np.where(keep, change, 0)
            if self.partition:
                events[self.partition.event] = self.partition.size_bytes
            live = np.cumsum(events)
            end = int(live[-1])
            result.append(Rise(max(int(live.max()), end + rise.highest), end + rise.growth))
        return Rises(*result)

    def held_bytes(self, buffer: int, traced_bytes: np.ndarray) -> int:
        """Bytes of one of its gradients."""
        if self.partition and buffer == self.first:
            return self.partition.size_bytes
        if buffer >= self.tape.first:
            return self.tape.attributes[buffer - self.tape.first].size_bytes
        if buffer >= self.first:
            return int(self.template.buffer_bytes[buffer - self.first])
        return int(traced_bytes[buffer % len(traced_bytes)])
