"""What a campaign found: a line of JSON a job, appended as jobs end, read again when it goes on."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from calibrate.campaign import design
from calibrate.records.record import SCHEMA_VERSION, Record
from predictor.common.errors import InputError
from predictor.common.files import opened as opened_file
from predictor.common.json_dataclasses import from_plain, to_plain
from predictor.common.suggestions import named, show, version_text
from predictor.workload.workload import Workload

SKIPPED = "skipped: "
"""Begins ``Row.failed`` of a job that was not run because it would not fit."""
NO_ROWS = "this is no file of measurements: name another with --measurements"
DAMAGED = "delete that line, and the same command measures its job again"


@dataclass(frozen=True)
class Workspace:
    """What calls of an operator allocated beyond the prediction, over all steps.

    Attributes:
        result_bytes: of the call's largest result, as predicted.
        bytes: recorded less predicted, of one allocation.
        count: how many there were with these values.
        grows: whether the allocation is predicted with another size. Rows from before the field do not say: False,
            as all were then treated.
    """

    operator: str
    moment: str
    result_bytes: int
    bytes: int
    count: int
    grows: bool = False


@dataclass(frozen=True)
class Unexplained:
    """Buffers at the measured peak that do not count the same on both sides (``calibrate.attribution.Item``).

    Attributes:
        why: a value of ``calibrate.attribution.peak.Why``: ``device_only``, ``never_came``, ``other_size``, …
        count: how many buffers.
    """

    why: str
    operator: str
    moment: str
    count: int
    measured_bytes: int
    predicted_bytes: int


@dataclass(frozen=True)
class Row:
    """One job of a campaign and what was measured.

    Attributes:
        id, role, group, job: of :class:`calibrate.campaign.design.Job`; ``job`` are its keys.
        record: None if nothing was measured. Its ``workload.model`` is the job's, not a path. ``predicted`` is None
            for the jobs of :data:`calibrate.campaign.design.COMMUNICATORS`.
        unexplained_bytes: measured less predicted peak of requested bytes; None if there is no prediction.
        failed: why the job is of no use to a fit: it ended early, ran out of memory (then with a record), or was
            skipped. None if all is well.
    """

    id: str
    role: str
    group: str
    job: Mapping[str, Any]
    record: Record | None = None
    workspaces: tuple[Workspace, ...] = ()
    unexplained_bytes: int | None = None
    unexplained_items: tuple[Unexplained, ...] = ()
    failed: str | None = None

    @property
    def skipped(self) -> bool:
        """Whether it was not run because it would not fit."""
        return self.failed is not None and self.failed.startswith(SKIPPED)

    @property
    def broken(self) -> bool:
        """Whether it ended before anything was measured, as it should not."""
        return self.failed is not None and self.record is None and not self.skipped

    def workload(self) -> Workload:
        """As it ran: its rank, on its GPU."""
        more = {} if self.record is None else {"rank": self.record.rank, "gpu": self.record.workload["gpu"]}
        return design.workload(self.job, **more)


def read(path: str | os.PathLike[str]) -> list[Row]:
    """All rows, the last of each job, in the order of their ids: when jobs ended does not matter.

    A last line without an end was being written when the campaign was killed: it does not count.

    Raises:
        InputError: not readable, a line that is no row, or nothing but a line without an end.
    """
    try:
        with opened_file(path, pipes=False) as stream:
            *lines, torn = stream.read().split(b"\n")
    except OSError as error:
        raise InputError(f"{named(path)}: cannot be read: {error.strerror}") from None
    if torn and not lines:
        raise InputError(f"{named(path)}: {NO_ROWS}")
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines, 1):
        row = _row(line, f"{named(path)}, line {number}", DAMAGED if rows else NO_ROWS)
        rows[row.id] = row
    return [rows[key] for key in sorted(rows)]


def _row(line: bytes, where: str, advice: str) -> Row:
    """The row of a line; ``advice`` says what to do if it is none."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: not valid JSON: {advice}") from None
    if not isinstance(document, dict):
        raise InputError(f"{where}: not a mapping: {advice}")
    record = document.get("record")
    version = record.get("schema_version") if isinstance(record, dict) else SCHEMA_VERSION
    if version != SCHEMA_VERSION:
        raise InputError(f"{where}: the record's schema_version is {version_text(version)}, and this release has "
                         f"{SCHEMA_VERSION}: name another file with --measurements, and measure anew")
    try:
        row = from_plain(Row, document, where)
        _check(row, where)
    except InputError as error:
        raise InputError(f"{error}: {advice}") from None
    return row


def _check(row: Row, where: str) -> None:
    """It is what a campaign writes: of a known role, with the id of its job, and with peaks if it did not fail."""
    if row.role not in design.ROLES:
        raise InputError(f"{where}: role: must be one of {', '.join(design.ROLES)}, not {show(row.role)}")
    if row.id != design.Job(row.job, row.role, row.group).id:
        raise InputError(f"{where}: the id {show(row.id)} is not of its job")
    if row.failed is None and row.record is not None:
        for counter in ("requested_bytes", "allocated_bytes", "reserved_bytes"):
            if max((getattr(peaks, counter) for peaks in row.record.job.moments), default=0) <= 0:
                raise InputError(f"{where}: the largest {counter} is not above 0")


def to_line(row: Row) -> bytes:
    """The row as JSON and the end of its line."""
    return json.dumps(to_plain(row), separators=(",", ":")).encode() + b"\n"


class Store:
    """The file of one campaign and what is in it; nothing of the file is changed before :meth:`begin`."""

    def __init__(self, path: str, handle: int | None) -> None:
        self.path, self._handle, self._begun = path, handle, False
        self._rows: dict[str, Row] = {}

    def read(self) -> None:
        """Take the rows that are in the file; InputError as :func:`read`."""
        self._rows = {row.id: row for row in read(self.path)}

    @property
    def rows(self) -> list[Row]:
        """The last row of each job, in the order of their ids."""
        return [self._rows[key] for key in sorted(self._rows)]

    def forget_failed(self) -> None:
        """Act as if the failed jobs had no row; the file keeps theirs, and a later row of a job counts."""
        self._rows = {key: row for key, row in self._rows.items() if row.failed is None}

    def begin(self) -> None:
        """Make the file if there is none; a torn last line that follows rows is cut off.

        Raises:
            InputError: it cannot be written, or another campaign made one meanwhile.
        """
        if self._begun:
            return
        if self._handle is None:
            self._handle = _locked(self.path, os.O_CREAT | os.O_EXCL)
        with open(self.path, "rb") as stream:
            os.ftruncate(self._handle, stream.read().rfind(b"\n") + 1)
        self._begun = True

    def add(self, row: Row) -> None:
        """Append a row; it is on the disk, whole, when this returns."""
        self.begin()
        line = to_line(row)
        if os.write(self._handle, line) != len(line):
            raise InputError(f"{named(self.path)}: the disk is full: the same command goes on when it is not")
        os.fsync(self._handle)
        self._rows[row.id] = row

    def close(self) -> None:
        """Let others write the file."""
        if self._handle is not None:
            os.close(self._handle)


@contextmanager
def opened(path: str) -> Iterator[Store]:
    """The store in a file, or in none yet.

    Raises:
        InputError: it cannot be written, another campaign is writing it, or as :func:`read`.
    """
    there = os.path.lexists(path)
    if not there and not os.access(os.path.dirname(path) or ".", os.W_OK | os.X_OK):
        raise InputError(f"{named(path)}: cannot be written: its directory is missing or not writable")
    store = Store(path, _locked(path) if there else None)
    try:
        if there:
            store.read()
        yield store
    finally:
        store.close()


def _locked(path: str, flags: int = 0) -> int:
    """A handle of the file to append with, which nobody else has."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o666)
    except FileExistsError:
        raise InputError(f"{named(path)}: another calibration made it meanwhile: the same command goes on from "
                         "there") from None
    except OSError as error:
        raise InputError(f"{named(path)}: cannot be written: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"{named(path)}: is not a regular file: name another with --measurements")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"{named(path)}: another calibration is writing it: wait for it, or name another file "
                         "with --measurements") from None
    except InputError:
        os.close(handle)
        raise
    return handle
