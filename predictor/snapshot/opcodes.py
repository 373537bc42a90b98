"""Checks the opcodes of a pickle as it is read, before the unpickler sees them.

Only the opcodes of plain data pass: dictionaries, lists, text, numbers, and tuples of a few whole numbers (the ids of
memory pools). Other tuples are rejected, because Python hashes all elements of a tuple each time: a few bytes of a
pickle can describe tuples that contain the same tuples twice, forty levels deep, and hashing such a key would take for
ever. Text and memo indices are limited, because a few bytes can ask for much memory. The opcodes are those of CPython's
``pickletools``, all protocols.
"""

from __future__ import annotations

import re

from predictor.common.errors import InputError

LONGEST_TEXT_BYTES = 1 << 20
"""Limit on one text. The longest in snapshots, the names of C++ functions, have some thousand bytes."""
LONGEST_FRAME_BYTES = 16 << 20
"""Limit on a frame. Pickle writes frames of 64 KiB, each with at most one object more (``pickle._Framer``)."""

_LONG = b"|".join(b"\\x%02x.{%d}" % (size, size) for size in range(10))
_INTEGER = rb"(?:K.|M..|J.{4}|\x8a(?:%b)|[IL]-?\d{1,20}L?\n)" % _LONG
_INTEGERS = b"%b(?:%b(?:%b{1,100}[\\x85-\\x87]?|[\\x85\\x86])?|\\x85)?" % ((_INTEGER,) * 3)
"""Whole numbers, and a tuple of the last one, two or three of them."""
_SHORT_TEXT = b"\\x8c(?:%b)" % b"|".join(re.escape(bytes([size])) + b".{%d}" % size for size in range(256))
_TOKEN = b"|".join((
    rb"h.|[Neuasld\x88\x89\x94\]})]", _INTEGERS, rb"\((?:%b{0,100}t)?" % _INTEGER, _SHORT_TEXT, rb"j.{4}|q.",
    rb"r..[\x00-\x0f]\x00", rb"G.{8}", rb"\x80.", rb"[gp]\d{1,7}\n", rb"F[-+.\dein]{1,40}\n", rb"[VS][^\n]{0,1000}\n"))
_TOKENS = re.compile(rb"(?s:%b){1,500}" % _TOKEN)
"""Opcodes of plain data with their arguments. A tuple follows directly on the numbers in it."""
_LONGEST_TOKEN = 1_300
"""More bytes than any alternative of the pattern matches."""
_TEXTS = {ord("X"): 4, ord("T"): 4, ord("U"): 1}
"""Opcode of a text -> bytes of the length field that precedes it."""
_FRAME, _LONG_PUT = 0x95, ord("r")
_STARTS = b"(hjqgpKMJGFILVS\x80\x8a\x8c"
"""Opcodes with arguments that the pattern matches, unless they are cut off."""
_STOPS = b".ciPQoR\x81\x92\x93"
"""The end of the pickle, and opcodes at which our unpickler fails: they name a class, or call an object."""


class Checked:
    """The opcodes of a pickle that comes in pieces. What was checked may be unpickled; the rest waits for more.

    It remembers no more than the waiting bytes, some hundred thousand at most.
    """

    def __init__(self) -> None:
        self._waiting = b""
        self._text_bytes = 0  # of a text that goes on in the next piece
        self._seen_bytes = 0
        self._stopped = False

    def add(self, piece: bytes, *, last: bool) -> bytes:
        """The bytes that are checked by now. After the last piece, what is left waiting is an opcode that is cut off.

        Raises:
            InputError: an opcode that pickles of snapshots do not have, or one that asks for too much.
        """
        data = self._waiting + piece if self._waiting else piece
        end = self._checked(data, last)
        self._waiting = data[end:]
        self._seen_bytes += end
        return data[:end]

    def _checked(self, data: bytes, last: bool) -> int:
        """Position of the first byte in ``data`` that has to wait."""
        position = 0
        while not self._stopped:
            skipped = min(self._text_bytes, len(data) - position)
            self._text_bytes -= skipped
            position += skipped
            if position == len(data) or not last and len(data) - position < _LONGEST_TOKEN:
                return position
            if match := _TOKENS.match(data, position):
                if not last and len(data) - match.end() < _LONGEST_TOKEN:
                    return position  # the numbers of a tuple must not be parted from it
                position = match.end()
            elif data[position] in _STARTS and len(data) - position < _LONGEST_TOKEN:
                return position
            else:
                position = min(self._other(data, position), len(data))
        return len(data)

    def _other(self, data: bytes, position: int) -> int:
        """Checks an opcode that the pattern leaves out. Returns the position behind it."""
        code = data[position]
        if code in _STOPS:
            self._stopped = True
            return position
        if count := _TEXTS.get(code):
            self._text_bytes = _number(data, position, count)
            if self._text_bytes > LONGEST_TEXT_BYTES:
                raise InputError(f"it has a text of {self._text_bytes:,} bytes, and no snapshot has one of more than "
                                 f"{LONGEST_TEXT_BYTES >> 20} MiB")
            return position + 1 + count
        if code == _FRAME and _number(data, position, 8) <= LONGEST_FRAME_BYTES:
            return position + 9
        if code == _LONG_PUT and _number(data, position, 4) <= self._seen_bytes + position:
            return position + 5
        if self._seen_bytes + position == 0:
            raise InputError("it is not a pickle")
        raise InputError(f"it uses the opcode {code:#x} in a way that no snapshot does")


def _number(data: bytes, position: int, count: int) -> int:
    return int.from_bytes(data[position + 1:position + 1 + count], "little")
