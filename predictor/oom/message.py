"""Finds PyTorch's out-of-memory messages in a log and reads their numbers.

A message is recognized by its beginning. Each number after it is found by the words around it, so that a message which
was cut off still gives what is left of it. Sources of the wordings:

- ``DeviceCachingAllocator::malloc``, c10/cuda/CUDACachingAllocator.cpp. PyTorch 2.0 prints "(GPU 0; … total capacity; …
  already allocated; …)". PyTorch 2.1 prints "GPU 0 has a total capacty of …" (sic); from 2.2 on it is "capacity".
  Private pools and the limit of ``set_per_process_memory_fraction`` were added to it later; 2.11 prints both.
- ``reportProcessMemoryInfo``, the same file: "Process 123 has …", "Including non-PyTorch memory, this process has …".
- NCCL's warnings "Cuda failure 2 'out of memory'" (src/include/checks.h) and "Failed to CUDA calloc async 608 bytes"
  (src/include/alloc.h), which PyTorch repeats as the last error of ``ncclUnhandledCudaError``.
- ``mallocAsync``, c10/cuda/CUDAMallocAsyncAllocator.cpp (``backend:cudaMallocAsync``): "Allocation on device 0 …".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import chain, islice

from predictor.oom.amounts import SIZE, UNKNOWN_BYTES, Amount, amount
from predictor.oom.log import Stream, line_at, streams
from predictor.oom.stack import Place, place_of

LONGEST_MESSAGE = 4_000
"""Characters after the beginning of a message in which its numbers are searched."""
MOST_MESSAGES = 10_000
"""Limit on the messages of a log that are read, those that a process printed again among them."""
NARROWEST, MOST_PASTED_LINES = 40, 400
"""Characters of a terminal's line at least, and lines of a pasted text at most, for lines to be joined."""
MOST_PROCESSES = 256
"""Limit on the processes of a message that are read."""


class Kind(str, Enum):
    """What ran out: PyTorch's own allocator, that of ``backend:cudaMallocAsync``, or a library that asked CUDA.

    ``WORDS`` are words of an error without the figures that PyTorch prints with them: any of these may have run out.
    """

    ALLOCATOR = "allocator"
    ASYNC_ALLOCATOR = "cudaMallocAsync"
    LIBRARY = "library"
    WORDS = "words"


@dataclass(frozen=True)
class Process:
    """The memory of one process on the GPU. ``pid`` is None for the process that failed."""

    pid: int | None
    memory: Amount


@dataclass(frozen=True)
class Message:
    """One out-of-memory message. Sizes that it does not tell are None.

    Attributes:
        wording: the versions of PyTorch that word it so; for a library, its name.
        source: the process in the log, such as "rank 3"; empty without a prefix.
        line: number of its line in the log, from 1.
        times: how often the process printed it.
        requested: what the allocator asked the driver for: the request, rounded up to a segment.
        allocated: bytes in blocks that tensors use.
        idle: free bytes in the shared cache, and ``pools`` those in private pools (CUDA graphs, ``MemPool``).
        reserved: all bytes that the allocator got from the driver.
        allowed: the limit of ``set_per_process_memory_fraction``.
        place: where the traceback says that it happened; None without a traceback.
    """

    kind: Kind
    wording: str
    source: str
    line: int
    times: int = 1
    device: int | None = None
    requested: Amount | None = None
    capacity: Amount | None = None
    free: Amount | None = None
    allocated: Amount | None = None
    idle: Amount | None = None
    pools: Amount | None = None
    reserved: Amount | None = None
    allowed: Amount | None = None
    this_process: Amount | None = None
    processes: tuple[Process, ...] = ()
    place: Place | None = None

    @property
    def missing(self) -> Amount | None:
        """The bytes by which the request exceeds what the driver had free; None if unknown or if it had enough."""
        if self.requested is None or self.free is None or self.requested.bytes <= self.free.bytes:
            return None
        return self.requested - self.free


_S = f"({SIZE})"
_BEGINNING = re.compile(  # the name of another backend ("XPU out of memory") is captured and rejected
    r"(?:\b(?P<backend>[A-Z]{2,8})\s+)?\b[Oo]ut\s+of\s+memory\.\s+Tried\s+to\s+allocate\s+"
    rf"(?P<requested>{SIZE}|more\s+than\s+1EB)")
_ASYNC = re.compile(
    r"Allocation\s+on\s+device\s+(?P<device>\d{0,4})\s*would\s+exceed\s+allowed\s+memory\.\s+\(out\s+of\s+memory\)")
_LIBRARIES = (
    ("CUDA", re.compile(r"CUDA\s+(?:driver\s+)?error:\s+out\s+of\s+memory|\bcudaErrorMemoryAllocation\b"
                        r"|\bCUDA_ERROR_OUT_OF_MEMORY\b")),
    ("NCCL", re.compile(r"Cuda\s+failure\s+(?:\d{1,4}\s+)?['\"]?out\s+of\s+memory\b"
                        r"|Failed\s+to\s+CUDA\s+[mc]alloc(?:\s+async)?(?:\s+(?P<requested>\d{1,15})\s+bytes)?")),
    ("cuBLAS", re.compile(r"\bCUBLAS_STATUS_ALLOC_FAILED\b")),
    ("cuDNN", re.compile(r"\bCUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)\b")),
)
_WORDS = re.compile(r"\b(?:CUDA|HIP)\s+out\s+of\s+memory\b|\btorch\.(?:cuda\.)?OutOfMemoryError\b")
_ELSEWHERE = (
    ("of the host's memory", re.compile(r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)")),
    ("of Apple's GPU (MPS)", re.compile(r"\bMPS backend out of memory\b")),
    ("of an XPU", re.compile(r"\bXPU out of memory\b")),
    ("of an NPU", re.compile(r"\bNPU out of memory\b")),
    ("of JAX or TensorFlow", re.compile(r"\bRESOURCE_EXHAUSTED: Out of memory\b")),
)
"""Out-of-memory errors of others than PyTorch on a CUDA GPU: c10/core/impl/alloc_cpu.cpp,
aten/src/ATen/mps/MPSAllocator.mm, c10/xpu/XPUCachingAllocator.cpp (PyTorch 2.11); torch_npu; XLA."""
_FIELDS = {name: re.compile(pattern.replace(" ", r"\s+").replace("SIZE", _S)) for name, pattern in {
    "capacity": r"has a total capaci?ty of SIZE|SIZE total capacity;|Device limit : SIZE",
    "free": r"of which SIZE is free|SIZE free;|Free \(according to CUDA\): SIZE",
    "allocated": r"SIZE is allocated by PyTorch|SIZE already allocated;|Currently allocated : SIZE",
    "idle": r"SIZE is reserved by PyTorch but unallocated",
    "pools": r"with SIZE allocated in private pools",
    "reserved": r"SIZE reserved in total by PyTorch",
    "allowed": r"SIZE allowed;|PyTorch limit \(set by user-supplied memory fraction\) : SIZE",
    "this_process": r"this process has SIZE memory in use",
    "requested": r"Requested : SIZE",
}.items()}
_PROCESS = re.compile(rf"\bProcess\s+(\d{{1,10}})\s+has\s+{_S}\s+memory\s+in\s+use")
_DEVICE = re.compile(r"(?:\.\s+|\()GPU\s+(\d{1,4})\b")
_BOLD = re.compile(rf"\*\*{_S}\*\*")
"""A size that Markdown prints in bold."""
_END = re.compile(r"Traceback \(most recent call last\)")


def find(text: str) -> list[Message]:
    """The out-of-memory messages in a log, in order. A message that a process printed again counts once.

    Those of the last texts are remembered: a command looks several times whether a file is one.

    Raises:
        InputError: the log has too many lines.
    """
    text = _BOLD.sub(r"\1", text)
    plain, joined = _found(text), _found(unwrapped(text))
    more = sum(map(_figures, joined)) - sum(map(_figures, plain))
    if more < 0 or list(map(_told, joined)) == list(map(_told, plain)):
        return list(plain)
    return list(joined)  # a line may end within a number, whose end is a number, too


def _told(message: Message) -> Message:
    """A message without its place in the text."""
    return replace(message, line=0, place=None)


def _figures(message: Message) -> int:
    """How many of a message's numbers were found."""
    return sum(isinstance(item, Amount) for item in vars(message).values())


def unwrapped(text: str) -> str:
    """A pasted text with the lines joined that a terminal broke, in the middle of words, because they were too long.

    Lines as long as the longest are taken to be broken, if there are at least two.
    """
    lines = text.splitlines()
    width = max(map(len, lines), default=0)
    if width < NARROWEST or len(lines) > MOST_PASTED_LINES or sum(len(line) == width for line in lines) < 2:
        return text
    return "".join(line if len(line) == width else line + "\n" for line in lines)


@lru_cache(maxsize=4)
def _found(text: str) -> tuple[Message, ...]:
    messages: dict[tuple[object, ...], Message] = {}
    for message in islice(chain.from_iterable(map(_of, streams(text))), MOST_MESSAGES):
        key = (message.source, message.kind, message.wording, message.device, message.requested, message.free,
               message.allocated, message.idle, message.this_process)
        before = messages.get(key)
        messages[key] = message if before is None else _merged(before, message)
    return tuple(sorted(messages.values(), key=lambda message: message.line))


def contains(text: str) -> bool:
    """Whether a text holds an out-of-memory message."""
    return bool(find(text))


def words(text: str) -> list[Message]:
    """The first words of an out-of-memory error of each process, for a text in which :func:`find` finds no message.

    Raises:
        InputError: the log has too many lines.
    """
    found = []
    for stream in streams(text):
        match = _WORDS.search(stream.text())
        if match is not None:
            index = line_at(stream.starts(), match.start())
            found.append(Message(Kind.WORDS, "", stream.source, stream.numbers[index],
                                 place=place_of(stream.lines, index)))
    return sorted(found, key=lambda message: message.line)


def elsewhere(text: str) -> str:
    """Whose out-of-memory error of another device than a CUDA GPU a text holds; empty if it holds none."""
    return next((whose for whose, pattern in _ELSEWHERE if pattern.search(text)), "")


def _merged(first: Message, second: Message) -> Message:
    return replace(first, times=first.times + 1, place=first.place or second.place)


def _of(stream: Stream) -> Iterator[Message]:
    text, starts = stream.text(), stream.starts()
    beginnings = sorted([*_matches(_BEGINNING, text, Kind.ALLOCATOR), *_matches(_ASYNC, text, Kind.ASYNC_ALLOCATOR)],
                        key=lambda item: item[0].start())
    index = -1
    for number, (match, kind) in enumerate(beginnings):
        following = beginnings[number + 1][0].start() if number + 1 < len(beginnings) else len(text)
        end = min(following, match.start() + LONGEST_MESSAGE)
        traceback = _END.search(text, match.end(), end)
        end = traceback.start() if traceback else end
        after, index = index, line_at(starts, match.start())
        yield _read(match, kind, text[match.start():end], stream, index, after)
    for name, pattern in _LIBRARIES:
        index = -1
        for match in pattern.finditer(text):
            after, index = index, line_at(starts, match.start())
            asked = match.groupdict().get("requested")
            yield Message(Kind.LIBRARY, name, stream.source, stream.numbers[index],
                          requested=Amount(int(asked)) if asked else None,
                          place=place_of(stream.lines, index, after))


def _matches(pattern: re.Pattern[str], text: str, kind: Kind) -> Iterator[tuple[re.Match[str], Kind]]:
    for match in pattern.finditer(text):
        if match.groupdict().get("backend") in (None, "CUDA", "HIP"):
            yield match, kind


def _read(match: re.Match[str], kind: Kind, text: str, stream: Stream, index: int,
          after: int) -> Message:
    """The message that begins with a match. ``text`` reaches to its end.

    Args:
        index: its line in the stream.
        after: that of the message before; -1 if there is none.
    """
    values = {name: _first(pattern, text) for name, pattern in _FIELDS.items()}
    device = _DEVICE.search(text)
    number = match["device"] if kind is Kind.ASYNC_ALLOCATOR else device and device[1]
    if kind is Kind.ALLOCATOR:
        asked = match["requested"]
        values["requested"] = None if asked.endswith("1EB") else amount(asked)
    allocated, idle, reserved = _cache(values)
    processes = tuple(Process(int(pid), amount(size)) for pid, size in _PROCESS.findall(text)[:MOST_PROCESSES])
    return Message(
        kind, _wording(kind, text), stream.source, stream.numbers[index], device=int(number) if number else None,
        requested=values["requested"], capacity=values["capacity"], free=_known(values["free"]),
        allowed=_known(values["allowed"]), this_process=_known(values["this_process"]),
        place=place_of(stream.lines, index, after),
        processes=tuple(process for process in processes if _known(process.memory)),
        allocated=allocated, idle=idle, pools=values["pools"], reserved=reserved)


def _cache(values: dict[str, Amount | None]) -> tuple[Amount | None, Amount | None, Amount | None]:
    """The bytes that tensors use, those that lie idle, and the reserved bytes.

    What is called "allocated in private pools" are the free blocks of these pools (``BlockPool::blocks`` holds no
    others), and the printed sum of allocated bytes contains them. So they are taken out of it.
    """
    allocated, idle, pools, reserved = (values[name] for name in ("allocated", "idle", "pools", "reserved"))
    if pools is not None and allocated is not None:
        reserved = None if idle is None else allocated + idle
        allocated = allocated - pools
    elif idle is not None and allocated is not None:
        reserved = allocated + idle
    elif reserved is not None and allocated is not None:
        idle = (reserved - allocated).or_nothing
    return allocated, idle, reserved


def _first(pattern: re.Pattern[str], text: str) -> Amount | None:
    match = pattern.search(text)
    return None if match is None else amount(next(group for group in match.groups() if group))


def _known(memory: Amount | None) -> Amount | None:
    return None if memory is None or memory.bytes >= UNKNOWN_BYTES else memory


def _wording(kind: Kind, text: str) -> str:
    if kind is Kind.ASYNC_ALLOCATOR:
        return "PyTorch with backend:cudaMallocAsync"
    if "reserved in total by PyTorch" in text or "total capacity;" in text:
        return "PyTorch 2.0"
    if "capacty" in text:
        return "PyTorch 2.1"
    return "PyTorch 2.2 or later" if "has a total capacity" in text else "PyTorch"
