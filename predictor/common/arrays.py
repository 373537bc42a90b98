"""``.npz`` files that hold arrays and one JSON header, read without pickles and with a limit on the unpacked size.

A file ends with the SHA-256 of all that is before, in the comment of its zip archive. So damage is noticed. It is no
defence against an attacker, who can write the sum, too. A file without one is read as well.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from predictor.common.errors import InputError
from predictor.common.files import CHUNK_BYTES, open_bounded

MOST_BYTES = 256 << 20
"""Limit on all unpacked arrays of one file. The largest shipped formula unpacks to 1 MiB."""
SUM = b"sha256:"
"""Beginning of the comment; 64 hexadecimal digits follow."""
COMMENT_BYTES = len(SUM) + 64


class TooLarge(Exception):
    """A file whose arrays would unpack to more than :data:`MOST_BYTES`."""


def to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A file of these arrays by name. It is the same whenever it is made, and half as large as numpy would make it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            part = io.BytesIO()
            np.lib.format.write_array(part, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), part.getvalue(), zipfile.ZIP_LZMA)
    return _with_sum(stream.getvalue())


def _with_sum(archive: bytes) -> bytes:
    """A zip archive without a comment, with its SHA-256 as the comment. The comment's length precedes it."""
    digest = hashlib.sha256(archive).hexdigest().encode()
    return archive[:-2] + COMMENT_BYTES.to_bytes(2, "little") + SUM + digest


def _check_sum(stream: io.BufferedReader) -> None:
    """Compares a file with the sum at its end, if it has one.

    Raises:
        ValueError: the file is damaged.
    """
    length = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, length - COMMENT_BYTES))
    comment = stream.read()
    stream.seek(0)
    if not comment.startswith(SUM):
        return
    digest, left = hashlib.sha256(), length - COMMENT_BYTES - 2
    while left > 0 and (chunk := stream.read(min(CHUNK_BYTES, left))):
        digest.update(chunk)
        left -= len(chunk)
    digest.update(bytes(2))  # where the comment's length is now
    stream.seek(0)
    if digest.hexdigest().encode() != comment[len(SUM):]:
        raise ValueError("its content is not that of its SHA-256")


def load(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a file by name, and its JSON header.

    Raises:
        InputError: this Python cannot unpack it.
        TooLarge: the arrays would unpack to more than :data:`MOST_BYTES`.
        Exception: any error of zipfile, zlib, json or numpy, if the file is damaged.
    """
    with open_bounded(path, pipes=False) as stream:
        _check_sum(stream)
        return _read(path, stream)


def _read(path: str | os.PathLike[str], stream: io.BufferedReader) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with zipfile.ZipFile(stream) as archive:
        parts = archive.infolist()
        if importlib.util.find_spec("_lzma") is None and any(p.compress_type == zipfile.ZIP_LZMA for p in parts):
            raise InputError(f"{path}: cannot be read because this Python was built without its module lzma: use a "
                             "Python that has it")
        if sum(part.file_size for part in parts) > MOST_BYTES:
            raise TooLarge(f"unpacks to more than {MOST_BYTES >> 20} MiB")
        arrays = {part.filename.removesuffix(".npy"): _array(archive.read(part)) for part in parts}
    return arrays, json.loads(arrays["header"].tobytes())


def _array(data: bytes) -> np.ndarray:
    """Reads one array after checking its shape: numpy would first allocate whatever shape the header claims."""
    stream = io.BytesIO(data)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read_header[np.lib.format.read_magic(stream)](stream)
    if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise ValueError("shape")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)
