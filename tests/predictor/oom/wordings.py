"""Out-of-memory messages as PyTorch prints them, from numbers: one function a wording.

Sources: ``DeviceCachingAllocator::malloc`` and ``reportProcessMemoryInfo``, c10/cuda/CUDACachingAllocator.cpp, and
``mallocAsync``, c10/cuda/CUDAMallocAsyncAllocator.cpp, of the versions that the functions name.
"""

from __future__ import annotations

from dataclasses import dataclass


def format_size(size: int) -> str:
    """``format_size``, c10/core/CachingDeviceAllocator.h, 2.11 (before: CUDACachingAllocator.cpp)."""
    for limit, scale, unit in ((1 << 20, 1 << 10, "KiB"), (1 << 30, 1 << 20, "MiB"), (None, 1 << 30, "GiB")):
        if size <= 1024:
            return f"{size} bytes"
        if limit is None or size <= limit:
            return f"{size / scale:.2f} {unit}"
    raise AssertionError


@dataclass(frozen=True)
class State:
    """What the allocator knows when a request fails, in bytes. ``pools`` are free blocks of private pools."""

    device: int
    requested: int
    capacity: int
    free: int
    allocated: int
    idle: int
    pools: int = 0
    allowed: int | None = None
    this_process: int | None = None
    others: tuple[tuple[int, int], ...] = ()

    @property
    def reserved(self) -> int:
        return self.allocated + self.idle + self.pools


def _allowed(s: State) -> str:
    return "" if s.allowed is None else f"{format_size(s.allowed)} allowed; "


def _processes(s: State) -> str:
    own = [] if s.this_process is None else [("Including non-PyTorch memory, this process", s.this_process)]
    listed = [*((f"Process {pid}", size) for pid, size in s.others), *own]
    return "".join(f"{who} has {format_size(size)} memory in use. " for who, size in listed)


def torch_2_0(s: State) -> str:
    return (f"CUDA out of memory. Tried to allocate {format_size(s.requested)} (GPU {s.device}; "
            f"{format_size(s.capacity)} total capacity; {format_size(s.allocated)} already allocated; "
            f"{format_size(s.free)} free; {_allowed(s)}{format_size(s.reserved)} reserved in total by PyTorch) If reserved "
            "memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for "
            "Memory Management and PYTORCH_CUDA_ALLOC_CONF")


def _later(s: State, capacity: str, hint: str, allowed: str, pools: str) -> str:
    shown = s.allocated + (s.pools if pools else 0)
    return (f"CUDA out of memory. Tried to allocate {format_size(s.requested)}. GPU {s.device} has a total {capacity} of "
            f"{format_size(s.capacity)} of which {format_size(s.free)} is free. {_processes(s)}{allowed}Of the allocated "
            f"memory {format_size(shown)} is allocated by PyTorch, {pools}and {format_size(s.reserved - shown)} is reserved "
            f"by PyTorch but unallocated. If reserved but unallocated memory is large try setting {hint}")


def torch_2_1(s: State) -> str:
    return _later(s, "capacty", "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
                  "PYTORCH_CUDA_ALLOC_CONF", "", "")


def torch_2_2(s: State) -> str:
    return _later(s, "capacity", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
                  "documentation for Memory Management  "
                  "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)", "", "")


def torch_2_11(s: State, variable: str = "PYTORCH_CUDA_ALLOC_CONF") -> str:
    pools = f"with {format_size(s.pools)} allocated in private pools (e.g., CUDA Graphs), " if s.pools else ""
    return _later(s, "capacity", f"{variable}=expandable_segments:True to avoid fragmentation.  See documentation for "
                  "Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
                  "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)", _allowed(s), pools)


def shared_allocator(s: State) -> str:
    """The allocator that several kinds of devices share (CachingDeviceAllocator.h of the sources after 2.11)."""
    return torch_2_11(s, "PYTORCH_ALLOC_CONF").removeprefix("CUDA o").join(("O", ""))


WORDINGS = {"PyTorch 2.0": (torch_2_0,), "PyTorch 2.1": (torch_2_1,),
            "PyTorch 2.2 or later": (torch_2_2, torch_2_11, shared_allocator)}


def malloc_async(s: State) -> str:
    return (f"Allocation on device {s.device} would exceed allowed memory. (out of memory)\n"
            f"Currently allocated     : {format_size(s.allocated)}\nRequested               : {format_size(s.requested)}\n"
            f"Device limit            : {format_size(s.capacity)}\nFree (according to CUDA): {format_size(s.free)}\n"
            "PyTorch limit (set by user-supplied memory fraction)\n"
            f"                        : {format_size(s.allowed if s.allowed is not None else (1 << 64) - 1)}")
