"""Calls the compiled twin of the simulated allocator, simulation.c, if this installation has it.

It is compiled when peakcast is installed and a C compiler is there; in a checkout ``pip install -e .`` does it again.
It gives what the Python modules of this package give, some twenty times faster (``pytest tests/test_speed.py``);
without it the Python modules do the work.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_int, c_int64
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np

from predictor.allocator.constants import ROUNDUP_INTERVALS
from predictor.allocator.driver import NoRange

NONE = -1
"""No limit, and no index."""
COMPLETED, OUT_OF_MEMORY, FAILED, NO_RANGE = range(4)
"""Results of a run, as in simulation.c."""


class Settings(Structure):
    """The settings of a run: the fields of ``Settings`` in simulation.c."""

    _fields_ = [
        ("large_segment_bytes", c_int64), ("max_split_bytes", c_int64), ("max_non_split_rounding_bytes", c_int64),
        ("divisions", c_int64 * ROUNDUP_INTERVALS), ("has_divisions", c_int64), ("expandable", c_int64),
        ("completes_at_once", c_int64),
        ("capacity_bytes", c_int64), ("total_bytes", c_int64), ("allowed_bytes", c_int64), ("garbage_bytes", c_int64),
        ("address_step", c_int64),
    ]


class Counters(Structure):
    """The counters after a run: the fields of ``Counters`` in simulation.c."""

    _fields_ = [(name, c_int64) for name in (
        "requested", "allocated", "reserved", "pending", "peak_requested", "peak_allocated", "peak_reserved",
        "peak_active", "segments", "retries", "ooms", "used", "refusals", "grants", "returns", "peak_at",
        "reserved_at_peak", "failed_at", "tried", "failed_request")]


class Curve(ctypes.Structure):
    """The highest bytes after the events of each stretch.

    Attributes:
        ends: ``int64[n]``, the event after each stretch; the last is the number of events.
        allocated, reserved: ``int64[n]``, of blocks and of segments.
    """

    _fields_ = [(name, ctypes.c_void_p) for name in ("ends", "allocated", "reserved")]


def is_available() -> bool:
    """Whether this installation has the compiled twin."""
    return _library() is not None


def run(settings: Settings, kinds: np.ndarray, buffers: np.ndarray, sizes: np.ndarray, streams: np.ndarray,
        curve: Curve | None = None) -> tuple[int, Counters]:
    """Runs events through an empty allocator.

    Args:
        kinds: ``int8[m]``, event types. buffers: ``int32[m]``, indices into ``sizes`` and ``streams``.
        sizes: ``int64[n]``, bytes of each buffer. streams: ``int32[n]``, the stream of each buffer.
        curve: filled up to a failure.

    Returns:
        The result, and the counters after the last event. They are meaningless if the result is FAILED: then only the
        Python modules can say why.

    Raises:
        InputError: the events need more addresses than a GPU has.
    """
    library, counters = _library(), Counters()
    if library is None:
        return FAILED, counters
    columns = [np.ascontiguousarray(column, dtype) for column, dtype in (
        (kinds, np.int8), (buffers, np.int32), (sizes, np.int64), (streams, np.int32))]
    at = [column.ctypes.data for column in columns]
    result = library.peakcast_simulate(byref(settings), len(kinds), at[0], at[1], len(sizes), at[2], at[3],
                                       byref(counters), None if curve is None else byref(curve))
    return _with_addresses(result, counters), counters


def _with_addresses(result: int, counters: Counters) -> int:
    """The result of a run that had addresses for all that it asked for.

    Raises:
        InputError: it had not.
    """
    if result == NO_RANGE:
        raise NoRange(counters.tried)
    return result


class Session:
    """An allocator that outlives a list of events. Buffers keep their numbers from list to list.

    Attributes:
        counters: its counters; a peak may be set back to the present value.
    """

    def __init__(self, settings: Settings) -> None:
        library = _library()
        assert library is not None  # callers ask is_available()
        self.counters, self._settings, self._library = Counters(), settings, library
        self._session = library.peakcast_open(byref(settings), byref(self.counters))
        if not self._session:
            raise MemoryError("no memory for the simulated allocator")

    def __del__(self) -> None:
        if getattr(self, "_session", None):
            self._library.peakcast_close(self._session)

    def play(self, kinds: np.ndarray, buffers: np.ndarray, sizes: np.ndarray, streams: np.ndarray) -> int:
        """Runs events as :func:`run` does, and returns the result. The columns must be contiguous, with its types."""
        result: int = self._library.peakcast_play(
            self._session, len(kinds), kinds.ctypes.data, buffers.ctypes.data, len(sizes), sizes.ctypes.data,
            streams.ctypes.data, None)
        return _with_addresses(result, self.counters)


@cache
def _library() -> ctypes.CDLL | None:
    path = Path(__file__).with_name(f"_simulation{EXTENSION_SUFFIXES[0]}")
    try:
        if _is_older_than_its_source(path):
            return None
        library = ctypes.CDLL(str(path))
    except OSError:  # it was not compiled, or for another machine
        return None
    pointer = ctypes.c_void_p
    library.peakcast_simulate.argtypes = [POINTER(Settings), c_int64, pointer, pointer, c_int64, pointer, pointer,
                                          POINTER(Counters), POINTER(Curve)]
    library.peakcast_simulate.restype = c_int
    library.peakcast_open.argtypes, library.peakcast_open.restype = [POINTER(Settings), POINTER(Counters)], pointer
    library.peakcast_play.argtypes = [pointer, c_int64, pointer, pointer, c_int64, pointer, pointer, POINTER(Curve)]
    library.peakcast_play.restype = c_int
    library.peakcast_close.argtypes, library.peakcast_close.restype = [pointer], None
    return library


def _is_older_than_its_source(library: Path) -> bool:
    """Whether the source was changed in a checkout and not compiled again. An installed package is always whole."""
    source, project = library.with_name("simulation.c"), library.parents[2] / "pyproject.toml"
    return project.exists() and source.stat().st_mtime > library.stat().st_mtime
