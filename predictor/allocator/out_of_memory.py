"""The simulated allocator's out-of-memory error."""

from __future__ import annotations


class OutOfMemory(Exception):
    """The numbers of ``torch.OutOfMemoryError``, in bytes.

    ``tried_to_allocate_bytes`` is the size of the new segment ("Tried to allocate ..."), ``requested_bytes`` the size
    of the program's request. ``allowed_bytes`` is the limit of the memory fraction, None without one. ``free_bytes`` is
    the memory that the driver has left, None if it has no limit.
    """

    def __init__(self, *, tried_to_allocate_bytes: int, requested_bytes: int, allocated_bytes: int,
                 reserved_bytes: int, free_bytes: int | None, allowed_bytes: int | None) -> None:
        self.tried_to_allocate_bytes = tried_to_allocate_bytes
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.free_bytes = free_bytes
        self.allowed_bytes = allowed_bytes
        super().__init__(f"out of memory: tried to allocate {tried_to_allocate_bytes:,} bytes, "
                         f"{allocated_bytes:,} allocated, {reserved_bytes:,} reserved")
