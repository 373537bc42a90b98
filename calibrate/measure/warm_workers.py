"""Worker processes that import the libraries once and fork for each measured job. Most of a small job is imports.

    with warm_workers.forked_jobs():
        measure(workload)
        measure(another)

Each job still is a process with its own environment, and CUDA is initialised in it. Jobs whose environments differ in
more than the emulated GPU and the allocator's settings get different workers. Jobs with visible output are not forked,
and on a real GPU none is where CUDA does not work in a fork.
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
from calibrate.job.job import PR_SET_PDEATHSIG, JobRequest, run_and_exit

IMPORTED = ("transformers.modeling_utils", "calibrate.job.reference_loop", "deepspeed", "torch._inductor.compile_fx")
"""Modules that a worker imports. bitsandbytes and peft, which imports it, are not among them: bitsandbytes initialises
CUDA on import, and CUDA does not work after a fork. The last is most of what bitsandbytes imports."""
LATE = (SETTING, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables that are read when CUDA is initialised, in the job. Imports only read the number of emulated GPUs from the
first, which CUDA_VISIBLE_DEVICES has too, and another allocator (``backend:``) from the others."""
MOST = 2
"""The most workers that are kept. Each takes half a gigabyte."""


class _Worker:
    """A process that forks jobs."""

    def __init__(self, environment: Mapping[str, str], interpreter: str) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                **child.python("calibrate.measure.warm_workers", str(theirs.fileno()), variables=environment,
                               interpreter=interpreter),
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)

    def run(self, order: JobRequest, environment: Mapping[str, str], log: str) -> int | None:
        """Runs a job and returns its exit code, negative for a signal. None if no job can be forked."""
        try:
            self._connection.send((asdict(replace(order, parent=self._process.pid)), dict(environment), log))
            return self._connection.recv()
        except (EOFError, OSError):  # the worker ended before the job, or with it
            return None

    def close(self) -> None:
        """Ends the worker and its job."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


class _Workers:
    """One worker for each interpreter and environment, not counting the variables in ``ignored``. The last used are
    kept."""

    def __init__(self, ignored: Collection[str]) -> None:
        self._ignored = {*LATE, *ignored}
        self._known: dict[tuple[str, frozenset[tuple[str, str]]], _Worker] = {}

    def run(self, order: JobRequest, environment: Mapping[str, str], log: str, interpreter: str) -> int | None:
        key = interpreter, frozenset((name, value) for name, value in environment.items()
                                     if name not in self._ignored or "backend:" in value)
        worker = self._known.pop(key, None) or _Worker(environment, interpreter)
        self._known[key] = worker
        while len(self._known) > MOST:
            self._known.pop(next(iter(self._known))).close()
        code = None
        try:
            code = worker.run(order, environment, log)
        finally:
            if code is None:
                self._known.pop(key).close()
        return code

    def close(self) -> None:
        for worker in self._known.values():
            worker.close()


_workers: ContextVar[_Workers | None] = ContextVar("workers", default=None)


@contextmanager
def forked_jobs(apart_from: Collection[str] = ()) -> Iterator[None]:
    """A context in which jobs are forked from workers.

    Args:
        apart_from: environment variables that no library reads during import. Jobs that differ only in these share a
            worker.
    """
    workers = _Workers(apart_from)
    token = _workers.set(workers)
    try:
        yield
    finally:
        _workers.reset(token)
        workers.close()


def run(order: JobRequest, environment: Mapping[str, str], log: str, interpreter: str) -> int | None:
    """Forks a job and returns its exit code, negative for a signal. None if it was not forked, and still has to run."""
    workers = _workers.get()
    return workers.run(order, environment, log, interpreter) if workers else None


def main() -> None:
    """Imports the libraries, then forks a job for each order until the connection is closed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = Connection(int(sys.argv[1]))
    # With flash-attn installed, transformers looks for a device on import. CUDA must not be initialised for that,
    # because it would not work in a fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in IMPORTED:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    import torch

    gc.collect()
    gc.freeze()
    if torch.cuda.is_initialized() or not _works_in_a_fork():
        return
    while True:
        try:
            order, environment, log = connection.recv()
        except EOFError:
            return
        process = os.fork()
        if not process:
            connection.close()
            _become(environment, log)
            run_and_exit(JobRequest(**order))
        connection.send(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def _works_in_a_fork() -> bool:
    """Whether CUDA works in a fork of this process: not if a library has called the driver during its import."""
    process = os.fork()
    if not process:
        try:
            import torch

            torch.cuda.synchronize()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def _become(environment: Mapping[str, str], log: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)


if __name__ == "__main__":
    main()
