"""Reads ``.npz`` files of arrays beside one JSON header, without pickles, and unpacks no more than is meant."""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from typing import Any

import numpy as np

from predictor.common.files import opened

MOST_BYTES = 256 << 20
"""Of all arrays of a file, unpacked; the largest formula that is shipped has one."""


class TooLarge(Exception):
    """It would unpack to more."""


def load(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a file by name, and its header.

    Raises:
        TooLarge: it would unpack to more than :data:`MOST_BYTES`.
        Exception: damage shows as any of zipfile's, zlib's, json's and numpy's errors.
    """
    with opened(path, pipes=False) as stream, zipfile.ZipFile(stream) as archive:
        parts = archive.infolist()
        if sum(part.file_size for part in parts) > MOST_BYTES:
            raise TooLarge(f"unpacks to more than {MOST_BYTES >> 20} MiB")
        arrays = {part.filename.removesuffix(".npy"): _array(archive.read(part)) for part in parts}
    return arrays, json.loads(arrays["header"].tobytes())


def _array(data: bytes) -> np.ndarray:
    """One array; numpy itself would first make room for whatever shape its header says."""
    stream = io.BytesIO(data)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read_header[np.lib.format.read_magic(stream)](stream)
    if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise ValueError("shape")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)
