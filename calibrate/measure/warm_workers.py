"""Processes that have imported what every measured job imports, and fork for each: imports are most of a small job.

    with warm.jobs():
        measure(workload)
        measure(another)

A job is still a process of its own, with its environment, and CUDA begins in it. Jobs with another environment, apart
from another emulated GPU, are forked from another process; those on a real GPU, or whose output is wanted, from none.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from calibrate import child
from calibrate.emulator.job_environment import SETTING
from calibrate.job.job import PR_SET_PDEATHSIG, Order, perform

IMPORTED = ("transformers.modeling_utils", "calibrate.job.reference_loop", "deepspeed")
"""Not bitsandbytes, nor peft, which imports it: it asks for the device at once, and CUDA does not survive a fork."""
MOST = 2
"""Processes that are kept, of half a gigabyte each."""


class _Origin:
    """A process that forks jobs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                **child.python("calibrate.measure.warm_workers", str(theirs.fileno()), variables=environment),
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)

    def run(self, order: Order, environment: Mapping[str, str], log: str) -> int | None:
        """The job's exit code, negative for a signal; None if no job can be forked."""
        try:
            self._connection.send((asdict(replace(order, parent=self._process.pid)), dict(environment), log))
            return self._connection.recv()
        except (EOFError, OSError):  # ended before, or with its job
            return None

    def close(self) -> None:
        """Ends it, and its job."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


class _Origins:
    """One for each environment, apart from the variables named; the last used are kept."""

    def __init__(self, apart_from: Collection[str]) -> None:
        # imports ask the emulated GPU how many there are, as CUDA_VISIBLE_DEVICES says; a job reads the rest again
        self._apart_from = {SETTING, *apart_from}
        self._known: dict[frozenset[tuple[str, str]], _Origin] = {}

    def run(self, order: Order, environment: Mapping[str, str], log: str) -> int | None:
        key = frozenset(item for item in environment.items() if item[0] not in self._apart_from)
        origin = self._known.pop(key, None) or _Origin(environment)
        self._known[key] = origin
        while len(self._known) > MOST:
            self._known.pop(next(iter(self._known))).close()
        code = None
        try:
            code = origin.run(order, environment, log)
        finally:
            if code is None:
                self._known.pop(key).close()
        return code

    def close(self) -> None:
        for origin in self._known.values():
            origin.close()


_origins: ContextVar[_Origins | None] = ContextVar("origins", default=None)


@contextmanager
def jobs(apart_from: Collection[str] = ()) -> Iterator[None]:
    """Emulated jobs that are measured inside are forked.

    Args:
        apart_from: environment variables that nothing reads while it is imported: each job has its own.
    """
    origins = _Origins(apart_from)
    token = _origins.set(origins)
    try:
        yield
    finally:
        _origins.reset(token)
        origins.close()


def run(order: Order, environment: Mapping[str, str], log: str) -> int | None:
    """The exit code of a job that was forked, negative for a signal; None if none was, and it is yet to be run."""
    origins = _origins.get()
    return origins.run(order, environment, log) if origins and order.event_completion is not None else None


def main() -> None:
    """Imports, then forks a job for each order until nobody gives any."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = Connection(int(sys.argv[1]))
    # beside flash-attn transformers asks for a device at once, which through CUDA itself would not survive a fork
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in IMPORTED:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    import torch

    if torch.cuda.is_initialized():
        return
    gc.collect()
    gc.freeze()
    while True:
        try:
            order, environment, log = connection.recv()
        except EOFError:
            return
        process = os.fork()
        if not process:
            connection.close()
            _become(environment, log)
            perform(Order(**order))
        connection.send(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def _become(environment: Mapping[str, str], log: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(written, stream)


if __name__ == "__main__":
    main()
