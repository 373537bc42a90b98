"""The height and width of a picture by the header of its file. Its pixels are not read."""

from __future__ import annotations

import base64
import binascii
import io
import os
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from predictor.common.errors import InputError
from predictor.common.files import open_bounded
from predictor.common.installing import pip_install
from predictor.common.suggestions import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

ORIENTATION = 0x0112
"""The tag of EXIF that says how a picture is turned. From 5 on, height and width change places."""
SIDEWAYS = 5
MOST_READS, MOST_BYTES = 1_000_000, 64 << 20
"""Calls with which the header of a picture is read, and bytes that they give. Pillow reads some formats whole."""
MOST_PIXELS = 50_000_000
"""Pixels of a picture. Each size is given to the processor as a blank picture, which takes ten bytes a pixel."""
MOST_TIMES_AS_LONG = 200
"""How many times as long as wide a picture may be. Processors that scale the shorter side to 336 pixels make the other
side so many times as long; Qwen2-VL's refuses more (transformers, image_processing_qwen2_vl.py, smart_resize)."""


def size(said: Any, folder: str, where: str) -> tuple[int, int]:
    """Height and width in pixels, after the turn that EXIF asks for.

    Loaders turn pictures so (transformers, image_utils.py, load_image; datasets, features/image.py).

    Args:
        said: a path, a ``data:`` or ``file:`` URL, the content of a file, or a mapping with ``bytes``, ``path`` or
            ``url``.
        folder: where relative paths begin.

    Raises:
        InputError: there is no such file, it is no picture, or it would have to be downloaded.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(f"the sizes of pictures are read with Pillow: {pip_install('pillow')}") from None
    with _opened(said, folder, where) as (stream, name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large pictures, of which nothing is decompressed, and of odd tags
        try:
            with Image.open(_Header(stream)) as picture:  # type: ignore[arg-type]
                width, height = picture.size
                # a PNG's own getexif would load all pixels, to look for a chunk behind them
                turned = Image.Image.getexif(picture).get(ORIENTATION, 1)
        except Exception as error:  # Pillow's formats raise what they like of damaged files
            unknown = isinstance(error, UnidentifiedImageError)
            reason = "its format is not known, or its header is cut off" if unknown else quoted(str(error), 200)[1:-1]
            raise InputError(f"{where}: {name}: is no picture that can be read: {reason}") from None
    if width * height > MOST_PIXELS or max(width, height) > MOST_TIMES_AS_LONG * min(width, height):
        raise InputError(f"{where}: {name}: has {width:,} x {height:,} pixels: must have {MOST_PIXELS:,} in all at "
                         f"most, and sides of which none is more than {MOST_TIMES_AS_LONG} times the other")
    return (width, height) if isinstance(turned, int) and turned >= SIDEWAYS else (height, width)


class _Header:
    """A file of which only so much is read as a header may take."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._reads, self._bytes = stream, 0, 0
        self.seek, self.tell, self.close = stream.seek, stream.tell, stream.close

    def read(self, size: int = -1) -> bytes:
        return self._counted(self._stream.read(min(size, MOST_BYTES + 1) if size >= 0 else MOST_BYTES + 1))

    def readline(self, size: int = -1) -> bytes:
        return self._counted(self._stream.readline(min(size, MOST_BYTES + 1) if size >= 0 else MOST_BYTES + 1))

    def _counted(self, part: bytes) -> bytes:
        self._reads, self._bytes = self._reads + 1, self._bytes + len(part)
        if self._reads > MOST_READS or self._bytes > MOST_BYTES:
            raise ValueError("its header is too long")
        return part


@contextmanager
def _opened(said: Any, folder: str, where: str) -> Iterator[tuple[BinaryIO, str]]:
    if isinstance(said, Mapping):
        if isinstance(said.get("bytes"), str):
            raise InputError(f"{where}: a picture's bytes are a text: in JSON give a path, or a data: URL of base64")
        said = next((value for key in ("bytes", "path", "url") if (value := said.get(key))), None)
    if isinstance(said, bytes):
        yield io.BytesIO(said), "the picture in the row"
    elif isinstance(said, str) and said.startswith("data:"):
        try:
            yield io.BytesIO(base64.b64decode(said.partition(",")[2], validate=True)), "the picture in the row"
        except binascii.Error:
            raise InputError(f"{where}: a picture's data: URL is not base64") from None
    elif isinstance(said, str) and said.startswith(("http:", "https:")):
        raise InputError(f"{where}: {quoted(said)}: pictures are not downloaded: give paths of files")
    elif isinstance(said, str) and said:
        path = os.path.join(folder, said.removeprefix("file://"))
        try:
            with open_bounded(path, pipes=False) as stream:
                yield stream, quoted(path, 200)
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"{where}: {quoted(path, 200)}: {reason}: if paths begin elsewhere, say "
                             "--image-folder DIR") from None
    else:
        raise InputError(f"{where}: a picture must be a path, or its bytes, not {quoted(said)}: leave out what is no "
                         "picture")
