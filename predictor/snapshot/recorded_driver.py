"""A driver that answers as the recorded one did: the same addresses, in the same order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from predictor.allocator.constants import UNLIMITED_TOTAL

ELSEWHERE = 1 << 62
"""Addresses from here on are for what the recorded driver was never asked; no device has them."""


class Refused(Exception):
    """The recorded driver said no, and the allocator gave up."""


class TooEarly(Exception):
    """The range of addresses may be in use until something is given back."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A new segment or mapped piece; ``after`` is how much had to be given back before, in pieces."""

    address: int
    size: int
    after: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is recorded of one allocation.

    Attributes:
        answers: what the driver gave for it, in order.
        fails: the allocation failed in the end: the answer is no when the answers are used up.
        given_back: counts the pieces that the simulation has given back for it so far.
        at_first: called before the first answer.
        at_no: called instead of a no; may raise.
        later: where a range of addresses, reserved although nothing is mapped for it now, begins; None if unknown.
    """

    answers: Iterable[Answer] = ()
    fails: bool = False
    given_back: Callable[[], int] = lambda: 0
    at_first: Callable[[], None] = lambda: None
    at_no: Callable[[], None] = lambda: None
    later: Callable[[], int | None] = lambda: None


class RecordedDriver:
    """Implements :class:`predictor.allocator.Driver`. A recording does not name its device.

    ``total_bytes`` of it, None if unknown, are only used for how far expandable segments can reach.
    """

    def __init__(self, total_bytes: int | None = None) -> None:
        self.total_bytes = total_bytes or UNLIMITED_TOTAL
        self._elsewhere = ELSEWHERE
        self._ends: dict[int, int] = {}  # of the ranges in use, by their first addresses
        self.expect(Question())

    def expect(self, question: Question) -> None:
        """What the next allocation will get."""
        self._question = question
        self._answers = deque(question.answers)

    def allocate(self, size: int) -> int | None:
        """The recorded segment if it is time for it and it has this size; else no, or an address that none has."""
        self._question.at_first()
        answer = self._next()
        if answer is not None and answer.size == size and self._is_unused(answer.address, size):
            address = self._answers.popleft().address
        elif self._says_no():
            return None
        else:
            address = self._new(size)
        self._ends[address] = address + size
        return address

    def reserve(self, size: int) -> int:
        """Addresses that begin at the next recorded piece, for mapping begins at the lowest address."""
        if self._answers and self._next() is None:
            raise TooEarly
        recorded = self._answers[0].address if self._answers else self._question.later()
        address = self._new(size) if recorded is None or recorded in self._ends else recorded
        self._ends[address] = address  # the ranges of expandable segments reach far, and count by their beginnings
        return address

    def map(self, address: int, page_bytes: int, pages: int) -> bool:
        """Whether the recorded driver did it; one that was never asked would have."""
        answer = self._next()
        if answer is not None and (answer.address, answer.size) == (address, page_bytes * pages):
            self._answers.popleft()
            return True
        return not self._says_no()

    def free(self, address: int) -> None:
        """The addresses can be used again."""
        del self._ends[address]

    def unreserve(self, address: int) -> None:
        """The addresses can be used again."""
        del self._ends[address]

    def unmap(self, address: int, page_bytes: int, pages: int) -> None:
        """Nothing to do."""

    def adopt(self, address: int, size: int, mapped_bytes: int) -> None:
        """Notes a range that is in use already."""
        self._ends[address] = address + mapped_bytes

    def free_bytes(self) -> int | None:
        """Not known."""
        return None

    def _next(self) -> Answer | None:
        if self._answers and self._answers[0].after <= self._question.given_back():
            return self._answers[0]
        return None

    def _says_no(self) -> bool:
        """No: in the end, or before something is given back."""
        no = self._question.fails and not self._answers or bool(
            self._answers and self._answers[0].after > self._question.given_back())
        if no:
            self._question.at_no()
        return no

    def _is_unused(self, address: int, size: int) -> bool:
        """Whether nothing else is there, as something may be once the simulation has decided otherwise."""
        return address not in self._ends and not any(
            start < address + size and address < end for start, end in self._ends.items())

    def _new(self, size: int) -> int:
        self._elsewhere += size
        return self._elsewhere - size
