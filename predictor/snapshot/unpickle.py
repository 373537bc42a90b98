"""Unpickles plain data only: it never looks up a class and never runs code from the file.

A pickle is a program. To make anything other than dictionaries, lists, text and numbers it has to name a class or
function, which this module rejects. An attacker could still make it allocate much memory, so the address space is
limited while the pickle is read.
"""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import lzma
import mmap
import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from predictor.common.errors import InputError
from predictor.common.files import NotAFile, open_bounded
from predictor.common.suggestions import file_name, quoted
from predictor.snapshot import opcodes

LARGEST_PICKLE_BYTES = 4 << 30
"""Limit on the uncompressed file. A recorded entry takes some 100 bytes, with long stacks some thousand."""
MOST_UNPACKED_PER_PACKED_BYTE = 100
"""Limit on what a compressed file may unpack to. Snapshots compress 5 to 40 times, those with long stacks the most."""
ALWAYS_UNPACKED_BYTES = 12 << 20
"""A compressed file may unpack to so many bytes, however small it is."""
SPARE_BYTES = 128 << 20
BYTES_PER_PICKLED_BYTE = 20
"""Memory allowed for each byte of the pickle. In snapshots, Python objects take about 15 times their pickle at most
(the shortest entry: 22 bytes in the pickle, 330 in memory)."""

CHUNK_BYTES = 1 << 20
COMPRESSED: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\xfd7zXZ\x00": lzma.open, b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
"""First bytes of a compressed file -> function that opens it."""

TORCH_ZIP = b"PK\x03\x04"


class _Plain(pickle.Unpickler):
    """Builds dictionaries, lists, tuples, text and numbers. It rejects everything else."""

    def find_class(self, module: str, name: str) -> Any:
        raise InputError(f"it names {quoted(f'{module}.{name}')}, which no snapshot does: nothing in it was run")

    def persistent_load(self, pid: Any) -> Any:
        raise InputError("it refers to data outside of the file, which no snapshot does")


def load(path: str, *, limit_bytes: int = LARGEST_PICKLE_BYTES) -> tuple[Any, int]:
    """Reads a pickle of plain data, which may be compressed (xz, gzip, bzip2).

    It is unpacked, checked and unpickled piece by piece, so that what is no snapshot is rejected where it begins to be
    none. Returns the data and the pickle's uncompressed size in bytes.

    Raises:
        InputError: no such file, not a pickle, cut off, larger than ``limit_bytes`` or far larger than the file once
            uncompressed, or more than plain data.
    """
    name = file_name(path)
    try:
        with open_bounded(path, pipes=False) as stream:
            packed_bytes = os.fstat(stream.fileno()).st_size
            opener = next((opener for magic, opener in COMPRESSED.items() if stream.peek().startswith(magic)), None)
            with opener(stream) if opener else nullcontext(stream) as unpacked:
                limits = (limit_bytes, max(MOST_UNPACKED_PER_PACKED_BYTE * packed_bytes, ALWAYS_UNPACKED_BYTES))
                return _unpickled(_Pieces(unpacked, name, limits), name)
    except IsADirectoryError:
        raise InputError(f"{name}: is a directory: name the snapshot in it") from None
    except NotAFile:
        raise InputError(f"{name}: is no regular file: write the snapshot into one") from None
    except FileNotFoundError:
        raise InputError(f"{name}: no such file: check the path of the snapshot") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _unpickled(pieces: _Pieces, name: str) -> tuple[Any, int]:
    stream = io.BufferedReader(pieces, CHUNK_BYTES)
    try:
        with _bounded_memory() as pieces.allow, _no_garbage_collection():
            head = stream.peek(len(TORCH_ZIP))
            if not head and not pieces.read_bytes:
                raise _Told(f"{name}: is empty: this is not a memory snapshot")
            value = _Plain(stream).load()
            return value, pieces.read_bytes
    except _Told as error:
        raise InputError(str(error)) from None
    except InputError as error:
        raise InputError(f"{name}: not a memory snapshot: {error}") from None
    except MemoryError:
        raise InputError(f"{name}: not a memory snapshot: it asks for far more memory than its size explains") from None
    except EOFError:
        raise InputError(f"{name}: is cut off, or not a memory snapshot: write it again") from None
    except Exception as error:  # malformed bytes can make the unpickler raise anything
        text = quoted(str(error), 80)[1:-1]
        if isinstance(error, pickle.UnpicklingError) and "truncated" in text:
            raise InputError(f"{name}: is cut off, or not a memory snapshot: write it again") from None
        raise InputError(f"{name}: not a pickle that torch.cuda.memory._dump_snapshot writes: {text}") from None


class _Told(InputError):
    """An error whose text is complete, with the name of the file."""


class _Pieces(io.RawIOBase):
    """The unpacked bytes of a file, of which the unpickler gets only those whose opcodes were checked."""

    def __init__(self, source: Any, name: str, limits: tuple[int, int]) -> None:
        self._source, self._name = source, name
        self._limit_bytes, self._explained_bytes = limits
        self._opcodes = opcodes.Checked()
        self._ready = memoryview(b"")
        self._ended = False
        self.allow: Callable[[int], None] = lambda size: None
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._ended:
            piece = self._next()
            self._ended = not piece
            self._ready = memoryview(self._opcodes.add(piece, last=self._ended))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _next(self) -> bytes:
        try:
            piece: bytes = self._source.read(CHUNK_BYTES)
        except (lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile):
            raise _Told(f"{self._name}: its compression is damaged or cut off: copy or write it again") from None
        except (OSError, ValueError) as error:  # OSError: also bz2's report of damage
            raise _Told(f"{self._name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if not self.read_bytes and piece.startswith(TORCH_ZIP):
            raise _Told(f"{self._name}: is a zip archive, perhaps of torch.save: write it with "
                        "torch.cuda.memory._dump_snapshot")
        self.read_bytes += len(piece)
        if self.read_bytes > self._limit_bytes:
            raise _Told(f"{self._name}: is larger than {_size(self._limit_bytes)} uncompressed: "
                        "record fewer entries (max_entries) or no stacks")
        if self.read_bytes > self._explained_bytes:
            raise _Told(f"{self._name}: unpacks to more than {MOST_UNPACKED_PER_PACKED_BYTE} times its size, as no "
                        "snapshot does: if it is one, unpack it first")
        self.allow(self.read_bytes)
        return piece


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A context without searches for unreachable objects, which take half of the time: nothing here becomes garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _size(size: int) -> str:
    return f"{size >> 30} GiB" if size >> 30 else f"{size:,} bytes"


@contextmanager
def _bounded_memory() -> Iterator[Callable[[int], None]]:
    """A context in which this process's address space can grow only as the bytes that were read explain.

    It yields a function that takes the number of those bytes. A few bytes can make the unpickler reserve, and touch,
    much memory, such as a list of each byte; under a limit it raises MemoryError. Only Linux tells the size of the
    address space; elsewhere there is no limit.
    """
    current = _address_space()
    if current == 0:
        yield lambda size: None
        return
    import resource  # here, because Windows has no such module

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = min((limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY), default=1 << 62)

    def allow(read_bytes: int) -> None:
        limit = current + SPARE_BYTES + BYTES_PER_PICKLED_BYTE * read_bytes
        resource.setrlimit(resource.RLIMIT_AS, (min(limit, most), hard))

    try:
        allow(0)
        yield allow
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    """The size of this process's address space in bytes; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0
