"""Follows the opcodes of a pickle before it is read, for keys of dictionaries that take for ever to hash.

A tuple hashes its elements each time, and a few bytes can say a tuple of tuples of the same tuples, forty deep. So no
key may be a tuple. The opcodes are those of CPython's ``pickletools``; of each object on the stack a flag is kept.
"""

from __future__ import annotations

from predictor.common.errors import InputError

_PUSHES = {"N": 1, "\x88": 1, "\x89": 1, "]": 1, "}": 1, "K": 2, "M": 3, "J": 5, "G": 9}
"""What pushes an object that is no tuple -> bytes of the opcode and its argument."""
_COUNTED = {"\x8c": 1, "U": 1, "C": 1, "\x8a": 1, "X": 4, "T": 4, "B": 4, "\x8d": 8, "\x8e": 8, "\x96": 8}
"""What pushes text, bytes or an integer -> bytes of its length, which comes first."""
_TUPLES = {")": 0, "\x85": 1, "\x86": 2, "\x87": 3}
_STOP = ".ciPQoR\x81\x92\x93"
"""The end, and where the unpickler stops: a class is named, or something is called that is none."""
_REFUSED = "012b\x82\x83\x84\x8b\x8f\x90\x91\x97\x98"
"""What pushes nothing that a snapshot holds (sets, integers of more than 255 bytes), or takes from the stack what
pickles of plain data leave there."""
_TUPLE_KEY = "a key of a dictionary is a tuple, as no snapshot has"
_TWO_MEMOS = "it fills its memo in two ways, which no snapshot does"
_SIZES = bytes(_PUSHES.get(chr(code), 0) for code in range(256))
_BINGET, _LONG1 = ord("h"), 0x8a


def check(data: bytes) -> None:
    """Refuses keys that are tuples.

    Raises:
        InputError: such a key, or an opcode that pickles of plain data have no use for.
    """
    walk, at, sizes = _Walk(data), 0, _SIZES
    push, tuples, steps = walk.stack.append, walk.memo, walk.steps
    try:
        while at >= 0:
            code = data[at]
            if size := sizes[code]:
                push(False)
                at += size
            elif code == _BINGET:  # these two are most of what is left
                push(data[at + 1] in tuples)
                at += 2
            elif code == _LONG1:
                push(False)
                at += 2 + data[at + 1]
            else:
                at = steps[code](at)
    except (LookupError, ValueError):
        return  # damaged: the unpickler says how


class _Walk:
    """The stack: whether each object is a tuple."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[bool] = []
        self._marks: list[int] = []
        self.memo: set[int] = set()  # where tuples are
        self._memoized = 0
        self._puts = False
        steps = {"(": self._mark, "\x94": self._memoize, "\x80": lambda at: at + 2, "\x95": lambda at: at + 9,
                 "h": self._get, "j": self._get, "g": self._get, "q": self._put, "r": self._put, "p": self._put,
                 "t": self._of_mark, "l": self._of_mark, "d": self._of_mark, "e": self._of_mark, "u": self._of_mark,
                 "a": self._append, "s": self._set, **dict.fromkeys(_COUNTED, self._counted),
                 **dict.fromkeys(_TUPLES, self._tuple), **dict.fromkeys("IFLSV", self._line),
                 **dict.fromkeys(_STOP, lambda at: -1), **dict.fromkeys(_REFUSED, self._refuse)}
        self.steps = {ord(code): step for code, step in steps.items()}

    def _mark(self, at: int) -> int:
        self._marks.append(len(self.stack))
        return at + 1

    def _memoize(self, at: int) -> int:
        if self._puts:
            raise InputError(_TWO_MEMOS)
        if self.stack[-1]:
            self.memo.add(self._memoized)
        self._memoized += 1
        return at + 1

    def _index(self, at: int) -> tuple[int, int]:
        """A place of the memo, and where the opcode ends."""
        code = self.data[at]
        if code in b"hq":
            return self.data[at + 1], at + 2
        if code in b"jr":
            return int.from_bytes(self.data[at + 1:at + 5], "little"), at + 5
        end = self.data.index(b"\n", at)
        return int(self.data[at + 1:end]), end + 1

    def _get(self, at: int) -> int:
        index, after = self._index(at)
        self.stack.append(index in self.memo)
        return after

    def _put(self, at: int) -> int:
        index, after = self._index(at)
        self._puts = True
        if self._memoized:
            raise InputError(_TWO_MEMOS)
        (self.memo.add if self.stack[-1] else self.memo.discard)(index)
        return after

    def _counted(self, at: int) -> int:
        self.stack.append(False)
        count = _COUNTED[chr(self.data[at])]
        return at + 1 + count + int.from_bytes(self.data[at + 1:at + 1 + count], "little")

    def _line(self, at: int) -> int:
        self.stack.append(False)
        return self.data.index(b"\n", at) + 1

    def _tuple(self, at: int) -> int:
        count = _TUPLES[chr(self.data[at])]
        del self.stack[len(self.stack) - count:]
        self.stack.append(True)
        return at + 1

    def _of_mark(self, at: int) -> int:
        code, start = self.data[at], self._marks.pop()
        if code in b"du" and any(self.stack[start::2]):
            raise InputError(_TUPLE_KEY)
        del self.stack[start:]
        if code in b"tld":
            self.stack.append(code == ord("t"))
        return at + 1

    def _append(self, at: int) -> int:
        self.stack.pop()
        return at + 1

    def _set(self, at: int) -> int:
        if self.stack[-2]:
            raise InputError(_TUPLE_KEY)
        del self.stack[-2:]
        return at + 1

    def _refuse(self, at: int) -> int:
        raise InputError(f"it uses the opcode {self.data[at]:#x}, which no snapshot does")
