"""A simulated CUDA driver that returns the recorded addresses in the recorded order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from predictor.allocator.constants import UNLIMITED_TOTAL

ELSEWHERE = 1 << 62
"""First of the addresses for requests that the recorded driver never got. No device has such addresses."""


class Refused(Exception):
    """The recorded driver refused memory, and the allocator gave up."""


class TooEarly(Exception):
    """The recorded range of addresses may still be in use: the recording released memory before it got the range."""


@dataclass(frozen=True, slots=True)
class DriverGrant:
    """A segment or mapped range that the recorded driver gave; address and size in bytes.

    ``after`` is the number of segments or ranges that the allocator had to give back before.
    """

    address: int
    size: int
    after: int


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """The driver's recorded actions during one allocation.

    Attributes:
        grants: the memory that the driver gave, in order.
        fails: whether the allocation failed in the end. The driver then refuses when the grants are used up.
        given_back: returns the number of segments or ranges that the simulation has given back for it so far.
        at_first: called before the first grant.
        at_refusal: called before each refusal. It may raise.
        reserved_range: returns the beginning of a range of addresses that was reserved although none of it is mapped
            now; None if unknown.
    """

    grants: Iterable[DriverGrant] = ()
    fails: bool = False
    given_back: Callable[[], int] = lambda: 0
    at_first: Callable[[], None] = lambda: None
    at_refusal: Callable[[], None] = lambda: None
    reserved_range: Callable[[], int | None] = lambda: None


class RecordedDriver:
    """Implements :class:`predictor.allocator.Driver` for a replay.

    ``total_bytes`` is the device's memory, None if unknown: a recording does not name its device. It only sets the
    length of the address range of expandable segments.
    """

    def __init__(self, total_bytes: int | None = None) -> None:
        self.total_bytes = total_bytes or UNLIMITED_TOTAL
        self._elsewhere = ELSEWHERE
        self._ends: dict[int, int] = {}  # ranges in use: first address -> end
        self.expect(RecordedRequest())

    def expect(self, request: RecordedRequest) -> None:
        """Sets the recorded actions for the next allocation."""
        self._request = request
        self._grants = deque(request.grants)

    def allocate(self, size: int) -> int | None:
        """The next recorded segment, if its turn has come and it has this size.

        Otherwise None if the recorded driver refused, or else an address that no device has.
        """
        self._request.at_first()
        grant = self._next()
        if grant is not None and grant.size == size and self._is_unused(grant.address, size):
            address = self._grants.popleft().address
        elif self._refuses():
            return None
        else:
            address = self._new(size)
        self._ends[address] = address + size
        return address

    def reserve(self, size: int) -> int:
        """A range that begins at the next recorded address: mapping begins at the lowest address of a range.

        Raises:
            TooEarly: the recording gave memory back before this range.
        """
        if self._grants and self._next() is None:
            raise TooEarly
        recorded = self._grants[0].address if self._grants else self._request.reserved_range()
        address = self._new(size) if recorded is None or recorded in self._ends else recorded
        self._ends[address] = address  # only the beginning counts: ranges of expandable segments are longer than memory
        return address

    def map(self, address: int, page_bytes: int, pages: int) -> bool:
        """Whether the recorded driver mapped the pages. True for a request that it never got, unless it refused."""
        grant = self._next()
        if grant is not None and (grant.address, grant.size) == (address, page_bytes * pages):
            self._grants.popleft()
            return True
        return not self._refuses()

    def free(self, address: int) -> None:
        """Makes the addresses available again."""
        del self._ends[address]

    def unreserve(self, address: int) -> None:
        """Makes the addresses available again."""
        del self._ends[address]

    def unmap(self, address: int, page_bytes: int, pages: int) -> None:
        """Does nothing: the range stays reserved."""

    def adopt(self, address: int, size: int, mapped_bytes: int) -> None:
        """Registers a range that is in use already."""
        self._ends[address] = address + mapped_bytes

    def free_bytes(self) -> int | None:
        """None: the driver's free memory is not recorded."""
        return None

    def _next(self) -> DriverGrant | None:
        if self._grants and self._grants[0].after <= self._request.given_back():
            return self._grants[0]
        return None

    def _refuses(self) -> bool:
        """Whether the recorded driver refused: in the end, or until the allocator gave memory back."""
        refuses = self._request.fails and not self._grants or bool(
            self._grants and self._grants[0].after > self._request.given_back())
        if refuses:
            self._request.at_refusal()
        return refuses

    def _is_unused(self, address: int, size: int) -> bool:
        """Whether no other range overlaps. One can, once the simulation has decided otherwise than the recording."""
        return address not in self._ends and not any(
            start < address + size and address < end for start, end in self._ends.items())

    def _new(self, size: int) -> int:
        self._elsewhere += size
        return self._elsewhere - size
