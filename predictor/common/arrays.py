"""``.npz`` files that hold arrays and one JSON header, read without pickles and with a limit on the unpacked size."""

from __future__ import annotations

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
from predictor.common.files import open_bounded

MOST_BYTES = 256 << 20
"""Limit on all unpacked arrays of one file. The largest shipped formula unpacks to 1 MiB."""


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
    return stream.getvalue()


def load(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a file by name, and its JSON header.

    Raises:
        InputError: this Python cannot unpack it.
        TooLarge: the arrays would unpack to more than :data:`MOST_BYTES`.
        Exception: any error of zipfile, zlib, json or numpy, if the file is damaged.
    """
    with open_bounded(path, pipes=False) as stream, zipfile.ZipFile(stream) as archive:
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
