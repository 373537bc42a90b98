"""Turns the bytes of a pickle into plain data and nothing else: no class is looked up, nothing runs.

A pickle is a program. Its only way to anything beyond dictionaries, lists, text and numbers is to name
a class or function, which is refused here; what is left to an attacker is to ask for much memory, so
that is limited while the pickle is read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import NotAFile, opened
from predictor.common.suggestions import named, show
from predictor.snapshot import opcodes

LARGEST_PICKLE_BYTES = 4 << 30
"""Of the uncompressed file. A recorded entry takes some 100 bytes, with long stacks some thousand."""

SPARE_BYTES = 256 << 20
BYTES_PER_PICKLED_BYTE = 64
"""Python objects take at most about ten times their pickle in snapshots (an entry: 90 bytes and 700)."""

CHUNK_BYTES = 1 << 20
COMPRESSED = {b"\xfd7zXZ\x00": lzma.open, b"\x1f\x8b": gzip.open, b"BZh": bz2.open}

TORCH_ZIP = b"PK\x03\x04"


class _Plain(pickle.Unpickler):
    """Builds dictionaries, lists, tuples, text, numbers; refuses the rest."""

    def find_class(self, module: str, name: str) -> Any:
        raise InputError(f"it names {show(f'{module}.{name}')}, which no snapshot does: nothing in it was run")

    def persistent_load(self, pid: Any) -> Any:
        raise InputError("it refers to data outside of the file, which no snapshot does")


def load(path: str, *, limit_bytes: int = LARGEST_PICKLE_BYTES) -> tuple[Any, int]:
    """The plain data in a pickle, which may be compressed (xz, gzip, bzip2), and the bytes of the pickle.

    Raises:
        InputError: no such file, not a pickle, cut off, larger than ``limit_bytes`` once uncompressed, or
            more than plain data.
    """
    name = named(path)
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
    except Exception as error:  # the unpickler lets through whatever malformed bytes make it raise
        text = show(str(error), 80)[1:-1]
        if isinstance(error, pickle.UnpicklingError) and "truncated" in text:
            raise InputError(f"{name}: is cut off, or not a memory snapshot: write it again") from None
        raise InputError(f"{name}: not a pickle that torch.cuda.memory._dump_snapshot writes: {text}") from None


def _contents(path: str, name: str, limit_bytes: int) -> io.BytesIO:
    """The uncompressed bytes, held once."""
    try:
        data = io.BytesIO()
        with opened(path, pipes=False) as stream:
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
    except (OSError, ValueError) as error:  # bz2 reports damage as OSError; ValueError: a NUL in the path
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _size(size: int) -> str:
    return f"{size >> 30} GiB" if size >> 30 else f"{size:,} bytes"


@contextmanager
def _bounded_memory(more_bytes: int) -> Iterator[None]:
    """Lets this process's address space grow by no more than ``more_bytes`` for a while.

    One opcode of a few bytes can make the unpickler reserve, and touch, tens of GB (a memo index of
    2^31, ``_Unpickler_MemoPut`` in CPython's Modules/_pickle.c); under a limit it raises MemoryError.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = _address_space()
    wanted = now + more_bytes
    if now == 0 or soft != resource.RLIM_INFINITY and soft <= wanted:
        yield  # an unknown size (no /proc), or a limit that is stricter already
        return
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    """Bytes of address space this process has; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
