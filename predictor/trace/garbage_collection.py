"""Controls Python's garbage collector: it must not run while a step is recorded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SKIPS = ContextVar("_SKIPS", default=False)
"""Whether :func:`existing_objects_skipped` has frozen the objects that are frozen."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collects garbage now, and disables the collector while the block runs.

    A collection would free tensors at arbitrary points of the recording.
    """
    gc.collect()
    if _SKIPS.get():
        gc.freeze()  # earlier recordings, which are large
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def existing_objects_skipped() -> Iterator[None]:
    """While the block runs, collections skip all objects that existed before it.

    Most of those are imported modules, and scanning them takes time. Does nothing if objects are already frozen.
    """
    if gc.get_freeze_count():  # other code has frozen objects, and unfreezing would undo that
        yield
        return
    gc.collect()
    gc.freeze()
    token = _SKIPS.set(True)
    try:
        yield
    finally:
        _SKIPS.reset(token)
        gc.unfreeze()
