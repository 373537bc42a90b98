"""When Python's collector may run: never while a step is recorded, and over no more than it must."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected() -> Iterator[None]:
    """Garbage is collected now, and then not while it runs: that would move deaths to arbitrary places."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def frozen() -> Iterator[None]:
    """Collections while it runs look only at what came after its beginning: most of what there is was imported."""
    if gc.get_freeze_count():  # somebody else's
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
