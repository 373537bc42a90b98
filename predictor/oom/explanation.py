"""What an out-of-memory message says: who holds the GPU's memory, and which settings could have served the request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from predictor.oom.amounts import Amount
from predictor.oom.message import Kind, Message, Process
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES


class Holder(str, Enum):
    """Who holds a part of the GPU's memory."""

    TENSORS = "tensors"
    IDLE = "idle in PyTorch's cache"
    POOLS = "idle in private pools"
    OUTSIDE = "outside PyTorch, this process"
    OTHER = "another process"
    REST = "the rest"
    FREE = "free"


class Cure(str, Enum):
    """A remedy that the numbers of a message alone speak for. It is not checked with the job."""

    SMALLER_REQUEST = "smaller_request"
    EXPANDABLE_SEGMENTS = "expandable_segments"
    MAX_SPLIT_SIZE = "max_split_size_mb"
    MEMORY_FRACTION = "memory_fraction"
    OTHER_PROCESSES = "other_processes"
    OUTSIDE_PYTORCH = "outside_pytorch"
    PRIVATE_POOLS = "private_pools"
    ROOM_FOR_LIBRARIES = "room_for_libraries"
    SMALLER_JOB = "smaller_job"


@dataclass(frozen=True)
class Share:
    """A part of the GPU's memory. ``pid`` names the process of :attr:`Holder.OTHER`."""

    holder: Holder
    memory: Amount
    pid: int | None = None


@dataclass(frozen=True)
class Advice:
    """A remedy, with the bytes that speak for it (0 if no number does) and the processes that it is about."""

    cure: Cure
    bytes: int = 0
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """One message, explained.

    Attributes:
        shares: parts of the capacity; they add up to it, up to rounding. Empty if the message does not tell enough.
        this_process: memory of the process that failed; None if unknown.
        others: the other processes. Where the message does not tell which process failed, those that surely did not.
        unidentified: processes of which one failed, and the message does not tell which (in a container PyTorch does
            not recognize its own number).
        advice: remedies, those that free the most first.
    """

    message: Message
    shares: tuple[Share, ...]
    this_process: Amount | None
    others: tuple[Process, ...]
    unidentified: tuple[Process, ...]
    advice: tuple[Advice, ...]

    @property
    def limit(self) -> Amount | None:
        """The memory that PyTorch's allocator could have: what it had and what was free, or the process's own limit."""
        m = self.message
        if m.kind is not Kind.ALLOCATOR or m.reserved is None:
            return m.allowed
        rest = None if m.free is None else m.reserved + m.free
        known = [amount for amount in (rest, m.allowed) if amount is not None]
        return min(known, key=lambda amount: amount.bytes, default=None)


def explain(message: Message) -> Explanation:
    """Explains one message from its numbers alone."""
    this_process, others, unidentified = _processes(message)
    shares = _shares(message, this_process, others)
    return Explanation(message, shares, this_process, others, unidentified, _advice(message, shares, others))


def _processes(m: Message) -> tuple[Amount | None, tuple[Process, ...], tuple[Process, ...]]:
    """The memory of the process that failed, the other processes, and those of which one may be it.

    PyTorch finds itself by its process number, which is another one inside a container. But the process that failed
    holds at least what PyTorch reserved. If all listed processes and PyTorch's reserved memory together are more than
    what is in use, it is one of them.
    """
    if m.this_process is not None or not m.processes:
        return m.this_process, m.processes, ()
    if m.reserved is None or m.capacity is None or m.free is None:
        return None, (), m.processes
    used, together = m.capacity - m.free, m.reserved
    for process in m.processes:
        together = together + process.memory
    large = tuple(process for process in m.processes if not m.reserved.surely_exceeds(process.memory))
    small = tuple(process for process in m.processes if process not in large)
    if not together.surely_exceeds(used):
        return None, small, large
    return (large[0].memory, small, ()) if len(large) == 1 else (None, small, large)


def _shares(m: Message, this_process: Amount | None, others: tuple[Process, ...]) -> tuple[Share, ...]:
    if m.capacity is None or m.free is None or m.allocated is None:
        return ()
    parts: list[tuple[Holder, Amount | None, int | None]] = [
        (Holder.TENSORS, m.allocated, None), (Holder.IDLE, m.idle, None), (Holder.POOLS, m.pools, None)]
    if this_process is not None and m.reserved is not None:
        parts.append((Holder.OUTSIDE, (this_process - m.reserved).or_nothing, None))
    parts += [(Holder.OTHER, process.memory, process.pid) for process in others]
    shares = [Share(holder, memory, pid) for holder, memory, pid in parts if memory is not None]
    rest = m.capacity - m.free
    for share in shares:
        rest = rest - share.memory
    if rest.bytes > rest.rounding_bytes:
        shares.append(Share(Holder.REST, rest))
    return (*shares, Share(Holder.FREE, m.free))


def _advice(m: Message, shares: tuple[Share, ...], others: tuple[Process, ...]) -> tuple[Advice, ...]:
    if m.kind is Kind.LIBRARY:
        return (Advice(Cure.ROOM_FOR_LIBRARIES),)
    if m.requested is not None and m.capacity is not None and m.requested.surely_exceeds(m.capacity):
        return (Advice(Cure.SMALLER_REQUEST, m.requested.bytes),)
    if m.requested is not None and m.allowed is not None and m.free is not None and m.free.bytes >= m.requested.bytes:
        return (Advice(Cure.MEMORY_FRACTION, m.allowed.bytes),)
    missing = m.missing
    if missing is None:
        return ()
    found = []
    if m.idle is not None and m.idle.bytes >= missing.bytes:  # expandable segments came with PyTorch 2.1
        cure = Cure.MAX_SPLIT_SIZE if m.wording == "PyTorch 2.0" else Cure.EXPANDABLE_SEGMENTS
        found.append(Advice(cure, m.idle.bytes))
    if m.pools is not None and m.pools.bytes >= missing.bytes:
        found.append(Advice(Cure.PRIVATE_POOLS, m.pools.bytes))
    other = sum(process.memory.bytes for process in others)
    if others and other >= missing.bytes:
        found.append(Advice(Cure.OTHER_PROCESSES, other, tuple(p.pid for p in others if p.pid is not None)))
    outside = sum(share.memory.bytes for share in shares if share.holder in (Holder.OUTSIDE, Holder.REST))
    if m.kind is Kind.ALLOCATOR and outside - ASSUMED_RUNTIME_BYTES >= missing.bytes:
        found.append(Advice(Cure.OUTSIDE_PYTORCH, outside))
    if not found and shares:
        found.append(Advice(Cure.SMALLER_JOB, missing.bytes))
    return tuple(sorted(found, key=lambda advice: -advice.bytes))
