"""The CUDA driver as the caching allocator uses it: device memory and its addresses."""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from predictor.allocator.constants import DRIVER_PAGE, FIRST_ADDRESS, LAST_ADDRESS, UNLIMITED_TOTAL
from predictor.common.errors import InputError


class Driver(Protocol):
    """The driver functions that the allocator calls; sizes in bytes. A replay returns recorded addresses."""

    #: Memory of the device, as cudaGetDeviceProperties reports it. Expandable segments and memory fractions depend
    #: on it.
    total_bytes: int

    def allocate(self, size: int) -> int | None:
        """cudaMalloc: an address, or None if the driver refuses."""

    def free(self, address: int) -> None:
        """cudaFree."""

    def reserve(self, size: int) -> int:
        """cuMemAddressReserve: addresses without memory."""

    def unreserve(self, address: int) -> None:
        """cuMemAddressFree."""

    def map(self, address: int, page_bytes: int, pages: int) -> bool:
        """cuMemCreate and cuMemMap of ``pages`` pages at the address. False if the driver refuses: it maps none."""

    def unmap(self, address: int, page_bytes: int, pages: int) -> None:
        """cuMemUnmap and cuMemRelease."""

    def adopt(self, address: int, size: int, mapped_bytes: int) -> None:
        """Register a range that is in use already, with ``mapped_bytes`` of memory (see CachingAllocator.seed)."""

    def free_bytes(self) -> int | None:
        """Bytes that can still be allocated; None without a limit."""


ADDRESSES_BYTES = LAST_ADDRESS - FIRST_ADDRESS
"""All addresses that the driver can map memory to."""


def reported_bytes(capacity_bytes: int | None, total_bytes: int | None) -> int:
    """The memory that a device reports: ``total_bytes``, or else its capacity, or else more than any job maps."""
    return total_bytes or capacity_bytes or UNLIMITED_TOTAL


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class NoRange(InputError):
    """No addresses are left for so many bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the job asks for {size:,} bytes, more than is left of a GPU's {ADDRESSES_BYTES >> 40} TiB "
                         "of addresses: check its batch, its sequence length and its buckets")


class SimulatedDriver:
    """A driver with a capacity and first-fit addresses, like the emulated GPU's (calibrate/emulator/csrc/device.c).

    ``capacity_bytes`` is the memory that the allocator can use (None: no limit). ``total_bytes`` is the memory that the
    device reports; it is larger where the CUDA context has taken a part. ``refusals`` counts the requests beyond the
    capacity. Addresses go up without gaps. With ``address_step_bytes`` they go down from the highest, and each is a
    multiple of it (:attr:`AllocatorSettings.address_step_bytes`). A request for which there is no range of addresses
    raises an InputError: without a capacity there is no other limit.
    """

    def __init__(self, capacity_bytes: int | None = None, total_bytes: int | None = None,
                 address_step_bytes: int = 0) -> None:
        self.capacity_bytes = capacity_bytes
        self._goes_down, self._unit = bool(address_step_bytes), address_step_bytes or DRIVER_PAGE
        self.total_bytes = reported_bytes(capacity_bytes, total_bytes)
        self.used_bytes = self.refusals = 0
        self._sizes: dict[int, int] = {}  # ranges in use, by address
        self._gaps: list[tuple[int, int]] = [(FIRST_ADDRESS, LAST_ADDRESS)]  # (start, end), by address

    def allocate(self, size: int) -> int | None:
        size = _round_up(size, DRIVER_PAGE)
        return self.reserve(size) if self._book(size) else None

    def free(self, address: int) -> None:
        self.used_bytes -= self._sizes[address]
        self.unreserve(address)

    def reserve(self, size: int) -> int:
        taken = _round_up(size, self._unit)
        if self._goes_down:
            return self._reserve_highest(_round_up(size, DRIVER_PAGE), taken)
        for index, (start, end) in enumerate(self._gaps):
            if start + taken <= end:
                self._gaps[index : index + 1] = [(start + taken, end)] if start + taken < end else []
                self._sizes[start] = taken
                return start
        raise NoRange(taken)

    def _reserve_highest(self, size: int, taken: int) -> int:
        """The end of the highest gap with room for ``taken`` addresses."""
        for index in range(len(self._gaps) - 1, -1, -1):
            start, end = self._gaps[index]
            if start + taken <= end:
                self._gaps[index : index + 1] = [(start, end - taken)] if start + taken < end else []
                self._sizes[end - taken] = size
                return end - taken
        raise NoRange(taken)

    def unreserve(self, address: int) -> None:
        start, end = address, address + _round_up(self._sizes.pop(address), self._unit)
        gaps = self._gaps
        index = bisect_left(gaps, (start, end))
        last = index
        if index < len(gaps) and gaps[index][0] == end:
            end = gaps[index][1]
            last += 1
        if index and gaps[index - 1][1] == start:
            index -= 1
            start = gaps[index][0]
        gaps[index:last] = [(start, end)]

    def map(self, address: int, page_bytes: int, pages: int) -> bool:
        return self._book(page_bytes * pages)

    def unmap(self, address: int, page_bytes: int, pages: int) -> None:
        self.used_bytes -= page_bytes * pages

    def adopt(self, address: int, size: int, mapped_bytes: int) -> None:
        self.used_bytes += mapped_bytes
        self._sizes[address] = size = _round_up(size, DRIVER_PAGE)
        for index, (start, end) in enumerate(self._gaps):
            if start <= address and address + size <= end:
                pieces = (start, address), (address + size, end)
                self._gaps[index : index + 1] = [piece for piece in pieces if piece[0] < piece[1]]
                return

    def free_bytes(self) -> int | None:
        return None if self.capacity_bytes is None else self.capacity_bytes - self.used_bytes

    def _book(self, size: int) -> bool:
        if self.capacity_bytes is not None and self.used_bytes + size > self.capacity_bytes:
            self.refusals += 1
            return False
        self.used_bytes += size
        return True
