"""Runs the jobs of a campaign in worker processes, several at a time, and stores their rows."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import cast

from calibrate import child
from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, Store
from calibrate.job.job import PR_SET_PDEATHSIG
from calibrate.measure import warm_workers
from predictor.common.errors import InputError

RowOf = Callable[[Job], Row]
FAILURES = 3
"""If this many jobs fail and none has succeeded, the cause is not in the jobs."""
REQUESTS, REQUEST_SECONDS = 3, 4
"""A worker that is to end is asked so often, and has so many seconds each time, in which it deletes temporary files."""


@dataclass(frozen=True)
class Limits:
    """Runs ``workers`` jobs at a time, and starts none after ``seconds`` (None: no limit)."""

    workers: int = 1
    seconds: float | None = None


class Guard:
    """Stops a campaign whose first jobs all fail."""

    def __init__(self) -> None:
        self._jobs = self._broken = 0
        self._reason: str | None = None

    def count(self, row: Row) -> None:
        """Counts a job that has ended."""
        self._jobs += 1
        self._broken += row.broken
        if self._broken == self._jobs == FAILURES:
            self._reason = row.failed

    @property
    def all_failed(self) -> bool:
        """Whether the first :data:`FAILURES` jobs failed."""
        return self._reason is not None

    def check(self) -> None:
        """Raises InputError if all of the first jobs failed."""
        if self.all_failed:
            raise InputError(f"the first {FAILURES} jobs failed, so the cause is not in the jobs: {self._reason} "
                             "(correct it and add --retry-failed)")


def run(jobs: Sequence[Job], row_of: RowOf, store: Store, limits: Limits,
        done: Callable[[Row], None] = lambda row: None) -> int:
    """Runs, in order, the jobs that have no row in the store.

    Args:
        row_of: measures a job in a worker, to which it is sent by ``pickle``.
        done: is called with each row after it is stored.

    Returns:
        The number of jobs that had not started when the time was over.

    Raises:
        InputError: the first jobs all failed. Rows that were measured stay in the store.
    """
    known = {row.id for row in store.rows}
    left = [job for job in jobs if job.id not in known]
    deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
    results = _results(left, row_of, limits.workers, lambda: deadline is not None and time.monotonic() >= deadline)
    guard, count = Guard(), 0
    try:
        for row in results:
            store.add(row)
            count += 1
            guard.count(row)
            done(row)
            guard.check()
    finally:
        results.close()
    return len(left) - count


def _results(jobs: Sequence[Job], row_of: RowOf, workers: int, over: Callable[[], bool]) -> Generator[Row, None, None]:
    """Yields rows as jobs end. Closing the iterator ends the workers."""
    waiting = list(jobs)
    busy: dict[Connection, tuple[subprocess.Popen, Job]] = {}
    try:
        while True:
            while waiting and len(busy) < workers and not over():
                connection, process = _start(row_of)
                busy[connection] = process, waiting[0]
                _send(connection, waiting.pop(0))
            if not busy:
                return
            for connection in cast("list[Connection]", wait(list(busy))):  # the stub names all that wait() takes
                process, job = busy[connection]
                try:
                    row = connection.recv()
                except (EOFError, ConnectionError):  # the latter if it died before it read the job
                    process.wait()
                    row = Row(job.id, job.role, job.group, dict(job.keys),
                              failed=f"the process that measured it ended with exit code {process.returncode}")
                if not row.broken and waiting and not over():
                    yield row
                    busy[connection] = process, waiting[0]
                    _send(connection, waiting.pop(0))
                else:  # a new worker takes the next job: this one may be damaged
                    busy.pop(connection)
                    _stop((connection, process))
                    yield row
    finally:
        _stop(*((connection, process) for connection, (process, _) in busy.items()))


def _start(row_of: RowOf) -> tuple[Connection, subprocess.Popen]:
    """Starts a worker as a new process, so that no state of this process reaches a measurement."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(**child.python("calibrate.campaign.run", str(theirs.fileno())),
                                   pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    _send(ours, row_of)
    return ours, process


def _send(connection: Connection, what: Job | RowOf) -> None:
    """Sends to a worker. That it has died is noticed when its row is received."""
    with suppress(ConnectionError):
        connection.send(what)


def _stop(*busy: tuple[Connection, subprocess.Popen]) -> None:
    """Ends workers: asks them several times, as Python drops exits that are raised in destructors, and then kills them.
    """
    for connection, _ in busy:
        connection.close()
    left = [process for _, process in busy]
    for _ in range(REQUESTS):
        for process in left:
            process.terminate()
        until = time.monotonic() + REQUEST_SECONDS
        for process in left:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0, until - time.monotonic()))
        left = [process for process in left if process.poll() is None]
    for process in left:  # one that loads a library hears nothing meanwhile
        process.kill()
        process.wait()


def main() -> None:
    """The worker: receives jobs and sends back their rows until the connection closes."""
    connection = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the job and deletes temporary files
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with warm_workers.forked_jobs():
        row_of = connection.recv()
        while True:
            try:
                job = connection.recv()
            except EOFError:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending already
                return
            connection.send(row_of(job))


if __name__ == "__main__":
    main()
