"""A strategy for memory snapshots that unpack to far more than their size: one piece of a pickle, repeated."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
from functools import lru_cache

from hypothesis import strategies as st

from tests.attack.inputs import Input


def _pickled(value: object) -> bytes:
    """A value inside a pickle."""
    return pickle.dumps(value, 2)[2:-1]


ADDRESS, SIZE = 1 << 46, 2 << 20
BLOCK = {"address": ADDRESS, "size": SIZE, "requested_size": 0, "state": "inactive", "frames": []}
SEGMENT = {"device": 0, "address": ADDRESS, "total_size": SIZE, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
           "is_expandable": False, "allocated_size": 0, "active_size": 0, "requested_size": 0, "blocks": [BLOCK], "frames": []}


def _entry(action: str, size: int) -> bytes:
    return _pickled({"action": action, "addr": ADDRESS, "size": size, "stream": 0, "time_us": 0, "frames": []})


REMEMBERED = b"".join(_entry(action, 512) + b"q" + bytes([200 + number])
                      for number, action in enumerate(("alloc", "free_requested", "free_completed")))
PIECES = (b"\0", b"]", b"N", b"}", b")", b"(", b"(e", b"K\x01", b"J\0\0\0\x7f", b"h\0", b"\x8c\xff" + b"a" * 255, b"]\x94", b"K\x01K\x01\x86", b"I1\n", b"Vx\n",
          b"}(h\0h\0h\1K\1u", b"}h\0K\1s", b"X\xff\xff\x0f\0" + b"a" * 0xfffff, b"\x95\xff\xff\xff\0\0\0\0\0", b"a" * 100)
"""What is repeated; some of it leaves the grammar of pickles."""
BEGINS = (b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94(]\x94(", b"\x80\x04", b"", b"\x80\x04}(\x8c\x01x", b"\x80\x04}(\x8c\x01xX\0\0\0\x10")
ENDS = (b"eeu.", b"t.", b".", b"")
REFERENCES = (b"\x80\x02}(" + _pickled("segments") + _pickled([SEGMENT]) + _pickled("device_traces") + b"](](" + _entry("segment_alloc", SIZE)
              + REMEMBERED, b"h\xc8h\xc9h\xca", b"eeu.")
"""A valid history that allocates and frees one block again and again, in entries that are all the same three."""
MIB = 1 << 20
PACKERS = (gzip.compress, bz2.compress, lzma.compress)


@lru_cache(maxsize=64)
def _packed(packer: int, piece: bytes) -> bytes:
    return PACKERS[packer](piece * (MIB // len(piece)))


@st.composite
def snapshots(draw: st.DrawFn) -> Input:
    """Snapshots of at most 40 MiB that are packed in some ten kilobytes: each MiB of them is packed on its own."""
    packer, whole = draw(st.integers(0, len(PACKERS) - 1)), draw(st.sampled_from((REFERENCES, None, None, None, None)))
    begin, piece, end = whole or (draw(st.sampled_from(some)) for some in (BEGINS, PIECES, ENDS))
    begin, end = PACKERS[packer](begin), PACKERS[packer](end)
    files = {"s.pickle": begin + _packed(packer, piece) * draw(st.sampled_from((1, 1, 3, 3, 10, 40))) + end}
    return draw(st.sampled_from((Input("snapshot", ("s.pickle",), files), Input("command", ("replay", "s.pickle"), files))))
