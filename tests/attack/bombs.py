"""A strategy for memory snapshots that unpack to far more than their size: one piece of a pickle, repeated."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
from functools import lru_cache

from hypothesis import strategies as st

from tests.attack.inputs import Input


def _memoised(number: int, **entry: object) -> bytes:
    """A valid entry of a history in a pickle, and an order to remember it by a number."""
    whole = {"addr": 1 << 46, "size": 512, "stream": 0, "time_us": 0, "frames": []} | entry
    return pickle.dumps(whole, 2)[2:-1] + b"q" + bytes([number])


ENTRIES = tuple(_memoised(200 + number, action=action) for number, action in enumerate(("alloc", "free_requested", "free_completed")))
PIECES = (b"\0", b"]", b"N", b"}", b")", b"(", b"(e", b"K\x01", b"J\0\0\0\x7f", b"h\0", b"\x8c\xff" + b"a" * 255, b"]\x94", b"K\x01K\x01\x86", b"I1\n", b"Vx\n",
          b"}(h\0h\0h\1K\1u", b"}h\0K\1s", b"X\xff\xff\x0f\0" + b"a" * 0xfffff, b"\x95\xff\xff\xff\0\0\0\0\0", b"a" * 100,
          b"h\xc8h\xc9h\xca")
"""What is repeated; some of it leaves the grammar of pickles."""
BEGINS = (b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](" + b"".join(ENTRIES), b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94(]\x94(", b"\x80\x04", b"", b"\x80\x04}(\x8c\x01x", b"\x80\x04}(\x8c\x01xX\0\0\0\x10")
ENDS = (b"eeu.", b"t.", b".", b"")
MIB = 1 << 20
PACKERS = (gzip.compress, bz2.compress, lzma.compress)


@lru_cache(maxsize=64)
def _packed(packer: int, piece: bytes) -> bytes:
    return PACKERS[packer](piece * (MIB // len(piece)))


@st.composite
def snapshots(draw: st.DrawFn) -> Input:
    """Snapshots of at most 40 MiB that are packed in some ten kilobytes: each MiB of them is packed on its own."""
    packer, piece = draw(st.integers(0, len(PACKERS) - 1)), draw(st.sampled_from(PIECES))
    begin, end = (PACKERS[packer](draw(st.sampled_from(some))) for some in (BEGINS, ENDS))
    files = {"s.pickle": begin + _packed(packer, piece) * draw(st.sampled_from((1, 1, 3, 3, 12, 40))) + end}
    return draw(st.sampled_from((Input("snapshot", ("s.pickle",), files), Input("command", ("replay", "s.pickle"), files))))
