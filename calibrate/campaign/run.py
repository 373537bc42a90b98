"""Runs the jobs of a campaign in processes of their own, some at a time, and keeps what they find."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from calibrate import child
from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, Store
from calibrate.job.job import PR_SET_PDEATHSIG
from calibrate.measure import warm_workers
from predictor.common.errors import InputError

RowOf = Callable[[Job], Row]
FAILURES = 3
"""So many jobs that fail before any succeeds are not the jobs' fault."""


@dataclass(frozen=True)
class Limits:
    """``workers`` jobs at a time; none is begun after ``seconds`` (None: no limit)."""

    workers: int = 1
    seconds: float | None = None


class Guard:
    """Stops a campaign whose jobs fail from the first on."""

    def __init__(self) -> None:
        self._jobs = self._broken = 0
        self._why: str | None = None

    def count(self, row: Row) -> None:
        """A job ended."""
        self._jobs += 1
        self._broken += row.broken
        if self._broken == self._jobs == FAILURES:
            self._why = row.failed

    @property
    def all_failed(self) -> bool:
        """Whether the first :data:`FAILURES` jobs did."""
        return self._why is not None

    def check(self) -> None:
        """Raises InputError if they did."""
        if self.all_failed:
            raise InputError(f"the first {FAILURES} jobs failed, so this is no matter of the jobs: {self._why} "
                             "(put it right and add --retry-failed)")


def run(jobs: Sequence[Job], row_of: RowOf, store: Store, limits: Limits,
        done: Callable[[Row], None] = lambda row: None) -> int:
    """Run, in order, the jobs that the store has no row of.

    Args:
        row_of: what a worker does; it is sent to one by ``pickle``.
        done: told of each row after it is kept.

    Returns:
        How many jobs were left when the time was over.

    Raises:
        InputError: all jobs fail from the first on; nothing of what was measured is lost.
    """
    known = {row.id for row in store.rows}
    left = [job for job in jobs if job.id not in known]
    ended = None if limits.seconds is None else time.monotonic() + limits.seconds
    results = _results(left, row_of, limits.workers, lambda: ended is not None and time.monotonic() >= ended)
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


def _results(jobs: Sequence[Job], row_of: RowOf, workers: int, over: Callable[[], bool]) -> Iterator[Row]:
    """Rows as jobs end; leaving the loop ends the workers."""
    waiting = list(jobs)
    busy: dict[Connection, tuple[subprocess.Popen, Job]] = {}
    try:
        while True:
            while waiting and len(busy) < workers and not over():
                connection, process = _start(row_of)
                busy[connection] = process, waiting[0]
                connection.send(waiting.pop(0))
            if not busy:
                return
            for connection in wait(list(busy)):
                process, job = busy[connection]
                try:
                    row = connection.recv()
                except EOFError:
                    process.wait()
                    row = Row(job.id, job.role, job.group, dict(job.keys),
                              failed=f"the process that measured it ended with exit code {process.returncode}")
                if not row.broken and waiting and not over():
                    yield row
                    busy[connection] = process, waiting[0]
                    connection.send(waiting.pop(0))
                else:  # another worker takes the next: this one may be in no state to
                    busy.pop(connection)
                    _stop(connection, process)
                    yield row
    finally:
        for connection, (process, _) in busy.items():
            _stop(connection, process)


def _start(row_of: RowOf) -> tuple[Connection, subprocess.Popen]:
    """A process of its own: nothing of this process's state reaches a measurement."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(**child.python("calibrate.campaign.run", str(theirs.fileno())),
                                   pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    ours.send(row_of)
    return ours, process


def _stop(connection: Connection, process: subprocess.Popen) -> None:
    connection.close()
    process.terminate()
    process.wait()


def main() -> None:
    """A worker: a job in, its row out, until nobody asks any more."""
    connection = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started it decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the job ends, temporary files go
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with warm_workers.jobs():
        row_of = connection.recv()
        while True:
            try:
                job = connection.recv()
            except EOFError:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already
                return
            connection.send(row_of(job))


if __name__ == "__main__":
    main()
