"""Unpickles plain data only: it never looks up a class and never runs code from the file.

A pickle is a program. To make anything other than dictionaries, lists, text and numbers it has to name a class or
function, which this module rejects. An attacker could still make it allocate much memory, so the address space is
limited while the pickle is read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import mmap
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

SPARE_BYTES = 256 << 20
BYTES_PER_PICKLED_BYTE = 64
"""Memory allowed for each byte of the pickle. In snapshots, Python objects take about ten times their pickle at most
(an entry: 90 bytes in the pickle, 700 in memory)."""

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

    Returns the data and the pickle's uncompressed size in bytes.

    Raises:
        InputError: no such file, not a pickle, cut off, larger than ``limit_bytes`` once uncompressed, or
            more than plain data.
    """
    name = file_name(path)
    data = _contents(path, name, limit_bytes)
    size_bytes, head = len(data.getbuffer()), data.read(len(TORCH_ZIP))
    data.seek(0)
    if not size_bytes:
        raise InputError(f"{name}: is empty: this is not a memory snapshot")
    if head == TORCH_ZIP:
        raise InputError(f"{name}: is a zip archive, perhaps of torch.save: write it with "
                         "torch.cuda.memory._dump_snapshot")
    try:
        with _bounded_memory(SPARE_BYTES + BYTES_PER_PICKLED_BYTE * size_bytes):
            opcodes.check(data.getvalue())
            return _Plain(io.BufferedReader(data)).load(), size_bytes
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


def _contents(path: str, name: str, limit_bytes: int) -> io.BytesIO:
    """The uncompressed bytes of a file, in one buffer."""
    try:
        data = io.BytesIO()
        with open_bounded(path, pipes=False) as stream:
            opener = next((opener for magic, opener in COMPRESSED.items() if stream.peek().startswith(magic)), None)
            with opener(stream) if opener else nullcontext(stream) as unpacked:
                while chunk := unpacked.read(CHUNK_BYTES):
                    data.write(chunk)
                    if data.tell() > limit_bytes:
                        raise InputError(f"{name}: is larger than {_size(limit_bytes)} uncompressed: "
                                         "record fewer entries (max_entries) or no stacks")
        data.seek(0)
        return data
    except IsADirectoryError:
        raise InputError(f"{name}: is a directory: name the snapshot in it") from None
    except NotAFile:
        raise InputError(f"{name}: is no regular file: write the snapshot into one") from None
    except FileNotFoundError:
        raise InputError(f"{name}: no such file: check the path of the snapshot") from None
    except (lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile):
        raise InputError(f"{name}: its compression is damaged or cut off: copy or write it again") from None
    except MemoryError:
        raise InputError(f"{name}: does not fit into this machine's memory") from None
    except (OSError, ValueError) as error:  # OSError: also bz2's report of damage; ValueError: a NUL in the path
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _size(size: int) -> str:
    return f"{size >> 30} GiB" if size >> 30 else f"{size:,} bytes"


@contextmanager
def _bounded_memory(more_bytes: int) -> Iterator[None]:
    """A context in which this process's address space can grow by at most ``more_bytes``.

    One opcode of a few bytes can make the unpickler reserve, and touch, tens of GB (a memo index of
    2^31, ``_Unpickler_MemoPut`` in CPython's Modules/_pickle.c). Under a limit it raises MemoryError. Only Linux tells
    the size of the address space; elsewhere there is no limit.
    """
    current = _address_space()
    if current == 0:
        yield
        return
    import resource  # here, because Windows has no such module

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = current + more_bytes
    if soft != resource.RLIM_INFINITY and soft <= limit:
        yield  # the limit is stricter already
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    """The size of this process's address space in bytes; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0
