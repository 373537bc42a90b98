"""The time limit of tests with hostile files."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 20


class TookForEver(BaseException):
    """Raised in what hangs; no ``except Exception`` catches it."""


@contextmanager
def bounded_time(seconds: int = PATIENCE_SECONDS) -> Iterator[None]:
    """Ends what runs inside with :class:`TookForEver`, if it hangs."""
    def stop(*_):
        raise TookForEver

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
