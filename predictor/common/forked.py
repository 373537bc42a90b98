"""Applies a function to several items at once, in forked processes, one for each core."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_function: Callable[[Any], Any]
"""The function, in a forked process. A fork has all that the function refers to, so only items and results travel."""


def results(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """The function's result for each item, in order; an exception of the function is raised here.

    Where a fork is not safe, or of no use, the function is applied in this process, to each item when it is asked for.

    Args:
        items: they and the results can be pickled.
    """
    processes = min(len(items), len(os.sched_getaffinity(0))) if may_fork() else 1
    if processes < 2:
        yield from map(function, items)
        return
    import multiprocessing  # here, because most commands need no processes
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    done = 0
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _start, (function,)) as pool:
        try:
            for result in pool.map(_apply, items):
                yield result
                done += 1
        except BrokenProcessPool:  # one was killed, for example because memory ran out: the rest is computed here
            pass
        finally:
            pool.shutdown(cancel_futures=True)  # the caller may not want the rest
    yield from map(function, items[done:])


def may_fork() -> bool:
    """Whether a forked process can work: other threads may hold locks for ever, and a CUDA context is lost."""
    return sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled once, by the process that waits
    gc.disable()  # looking through what was inherited would copy its pages, and a worker ends soon


def _apply(item: Any) -> Any:
    return _function(item)
