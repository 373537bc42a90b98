"""Checks the opcodes of a pickle before it is unpickled, and rejects dictionary keys that are tuples.

Python hashes all elements of a tuple each time. A few bytes of a pickle can describe tuples that contain the same
tuples twice, forty levels deep; hashing such a key would take for ever. The opcodes are those of CPython's
``pickletools``. For each object on the unpickler's stack, the check keeps a flag: whether it is a tuple.
"""

from __future__ import annotations

from predictor.common.errors import InputError

_PUSHES = {"N": 1, "\x88": 1, "\x89": 1, "]": 1, "}": 1, "K": 2, "M": 3, "J": 5, "G": 9}
"""Opcode that pushes an object other than a tuple -> bytes of the opcode with its argument."""
_COUNTED = {"\x8c": 1, "U": 1, "C": 1, "\x8a": 1, "X": 4, "T": 4, "B": 4, "\x8d": 8, "\x8e": 8, "\x96": 8}
"""Opcode that pushes text, bytes or an integer -> bytes of the length field that precedes the data."""
_TUPLES = {")": 0, "\x85": 1, "\x86": 2, "\x87": 3}
"""Opcode that makes a tuple -> number of its elements."""
_STOP = ".ciPQoR\x81\x92\x93"
"""The end of the pickle, and opcodes at which our unpickler fails: they name a class, or call an object."""
_REFUSED = "012b\x82\x83\x84\x8b\x8f\x90\x91\x97\x98"
"""Opcodes that pickles of plain data do not use: sets, integers of more than 255 bytes, or changes of the stack."""
_TUPLE_KEY = "a key of a dictionary is a tuple, as no snapshot has"
_TWO_MEMOS = "it fills its memo in two ways, which no snapshot does"
_SIZES = bytes(_PUSHES.get(chr(code), 0) for code in range(256))
_BINGET, _LONG1 = ord("h"), 0x8a


def check(data: bytes) -> None:
    """Rejects pickles with dictionary keys that are tuples.

    Raises:
        InputError: such a key, or an opcode that pickles of plain data do not use.
    """
    walk, position, sizes = _Walk(data), 0, _SIZES
    push, tuples, steps = walk.stack.append, walk.memo, walk.steps
    try:
        while position >= 0:
            code = data[position]
            if size := sizes[code]:
                push(False)
                position += size
            elif code == _BINGET:  # this opcode and the next are most of the others: handled here for speed
                push(data[position + 1] in tuples)
                position += 2
            elif code == _LONG1:
                push(False)
                position += 2 + data[position + 1]
            else:
                position = steps[code](position)
    except (LookupError, ValueError):
        return  # a damaged pickle: the unpickler will report the damage


class _Walk:
    """The unpickler's stack and memo, with a flag for each object: whether it is a tuple.

    Each step takes the position of an opcode and returns that of the next one, or -1 at the end.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[bool] = []
        self._marks: list[int] = []
        self.memo: set[int] = set()  # memo indices of tuples
        self._memoized = 0
        self._puts = False
        steps = {"(": self._mark, "\x94": self._memoize, "\x80": lambda position: position + 2,
                 "\x95": lambda position: position + 9,
                 "h": self._get, "j": self._get, "g": self._get, "q": self._put, "r": self._put, "p": self._put,
                 "t": self._of_mark, "l": self._of_mark, "d": self._of_mark, "e": self._of_mark, "u": self._of_mark,
                 "a": self._append, "s": self._set, **dict.fromkeys(_COUNTED, self._counted),
                 **dict.fromkeys(_TUPLES, self._tuple), **dict.fromkeys("IFLSV", self._line),
                 **dict.fromkeys(_STOP, lambda position: -1), **dict.fromkeys(_REFUSED, self._refuse)}
        self.steps = {ord(code): step for code, step in steps.items()}

    def _mark(self, position: int) -> int:
        self._marks.append(len(self.stack))
        return position + 1

    def _memoize(self, position: int) -> int:
        if self._puts:
            raise InputError(_TWO_MEMOS)
        if self.stack[-1]:
            self.memo.add(self._memoized)
        self._memoized += 1
        return position + 1

    def _index(self, position: int) -> tuple[int, int]:
        """The memo index in an opcode, and the position of the next opcode."""
        code = self.data[position]
        if code in b"hq":
            return self.data[position + 1], position + 2
        if code in b"jr":
            return int.from_bytes(self.data[position + 1:position + 5], "little"), position + 5
        end = self.data.index(b"\n", position)
        return int(self.data[position + 1:end]), end + 1

    def _get(self, position: int) -> int:
        index, after = self._index(position)
        self.stack.append(index in self.memo)
        return after

    def _put(self, position: int) -> int:
        index, after = self._index(position)
        self._puts = True
        if self._memoized:
            raise InputError(_TWO_MEMOS)
        (self.memo.add if self.stack[-1] else self.memo.discard)(index)
        return after

    def _counted(self, position: int) -> int:
        self.stack.append(False)
        count = _COUNTED[chr(self.data[position])]
        return position + 1 + count + int.from_bytes(self.data[position + 1:position + 1 + count], "little")

    def _line(self, position: int) -> int:
        self.stack.append(False)
        return self.data.index(b"\n", position) + 1

    def _tuple(self, position: int) -> int:
        count = _TUPLES[chr(self.data[position])]
        del self.stack[len(self.stack) - count:]
        self.stack.append(True)
        return position + 1

    def _of_mark(self, position: int) -> int:
        code, start = self.data[position], self._marks.pop()
        if code in b"du" and any(self.stack[start::2]):
            raise InputError(_TUPLE_KEY)
        del self.stack[start:]
        if code in b"tld":
            self.stack.append(code == ord("t"))
        return position + 1

    def _append(self, position: int) -> int:
        self.stack.pop()
        return position + 1

    def _set(self, position: int) -> int:
        if self.stack[-2]:
            raise InputError(_TUPLE_KEY)
        del self.stack[-2:]
        return position + 1

    def _refuse(self, position: int) -> int:
        raise InputError(f"it uses the opcode {self.data[position]:#x}, which no snapshot does")
