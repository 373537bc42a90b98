"""The file of a campaign's measurements: one line of JSON per job, appended when the job ends, so that an interrupted
campaign can continue."""

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
from predictor.common.files import open_bounded as opened_file
from predictor.common.json_dataclasses import from_plain, to_plain
from predictor.common.suggestions import file_name, quoted, version_text
from predictor.workload.workload import Workload

SKIPPED = "skipped: "
"""The beginning of ``Row.failed`` for a job that was not run because it is predicted not to fit."""
NO_ROWS = "this is no file of measurements: name another with --measurements"
DAMAGED = "delete that line, and the same command measures its job again"


@dataclass(frozen=True)
class Workspace:
    """Allocations of an operator's calls, over all steps, that the prediction lacks or predicts with another size.

    Attributes:
        result_bytes: predicted bytes of the call's largest result.
        bytes: recorded minus predicted bytes of one allocation.
        count: number of allocations with these values.
        grows: whether the allocation is predicted, with another size. False in older rows, which lack this field.
    """

    operator: str
    moment: str
    result_bytes: int
    bytes: int
    count: int
    grows: bool = False


@dataclass(frozen=True)
class Unexplained:
    """Buffers at the measured peak whose measured and predicted bytes differ (``calibrate.attribution.Item``).

    Attributes:
        why: a value of ``calibrate.attribution.peak.Reason``: ``device_only``, ``never_came``, ``other_size``, …
        count: number of buffers.
    """

    why: str
    operator: str
    moment: str
    count: int
    measured_bytes: int
    predicted_bytes: int


@dataclass(frozen=True)
class Row:
    """One job of a campaign and its measurement.

    Attributes:
        id, role, group, job: from :class:`calibrate.campaign.design.Job`; ``job`` is its ``keys``.
        record: None if nothing was measured. Its ``workload.model`` is the job's, not a path. ``predicted`` is None
            for the jobs of :data:`calibrate.campaign.design.COMMUNICATORS`.
        unexplained_bytes: measured minus predicted peak of requested bytes; None without a prediction.
        failed: the reason why a fit cannot use the job: it ended early, ran out of memory (then with a record), or
            was skipped. None after a success.
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
        """Whether the job was not run because it is predicted not to fit."""
        return self.failed is not None and self.failed.startswith(SKIPPED)

    @property
    def broken(self) -> bool:
        """Whether the job failed before anything was measured."""
        return self.failed is not None and self.record is None and not self.skipped

    def workload(self) -> Workload:
        """The workload that ran, with its rank and GPU."""
        more = {} if self.record is None else {"rank": self.record.rank, "gpu": self.record.workload["gpu"]}
        return design.workload(self.job, **more)


def read(path: str | os.PathLike[str]) -> list[Row]:
    """The last row of each job, sorted by id, whatever the order in the file.

    A last line without a newline is ignored: the campaign was killed while writing it.

    Raises:
        InputError: the file cannot be read, a line is no row, or the only line has no newline.
    """
    rows: dict[str, Row] = {}
    try:
        with opened_file(path, pipes=False) as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    if number == 1:
                        raise InputError(f"{file_name(path)}: {NO_ROWS}")
                    break
                row = _row(line, f"{file_name(path)}, line {number}", DAMAGED if rows else NO_ROWS)
                rows[row.id] = row
    except OSError as error:
        raise InputError(f"{file_name(path)}: cannot be read: {error.strerror}") from None
    return [rows[key] for key in sorted(rows)]


def _row(line: bytes, where: str, advice: str) -> Row:
    """The row of a line. ``advice`` ends the error message for a line that is no row."""
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
    """Checks a row: it has a known role, the id of its job and, unless it failed, peaks."""
    if row.role not in design.ROLES:
        raise InputError(f"{where}: role: must be one of {', '.join(design.ROLES)}, not {quoted(row.role)}")
    if row.id != design.Job(row.job, row.role, row.group).id:
        raise InputError(f"{where}: the id {quoted(row.id)} is not of its job")
    if row.failed is None and row.record is not None:
        for counter in ("requested_bytes", "allocated_bytes", "reserved_bytes"):
            if max((getattr(peaks, counter) for peaks in row.record.job.moments), default=0) <= 0:
                raise InputError(f"{where}: the largest {counter} is not above 0")


def to_line(row: Row) -> bytes:
    """The row as one line of JSON, with its newline."""
    return json.dumps(to_plain(row), separators=(",", ":")).encode() + b"\n"


class Store:
    """The file of one campaign and its rows. Nothing is written before :meth:`begin`."""

    def __init__(self, path: str, handle: int | None) -> None:
        self.path, self._handle, self._begun = path, handle, False
        self._rows: dict[str, Row] = {}

    def read(self) -> None:
        """Reads the rows of the file.

        Raises:
            InputError: as :func:`read`.
        """
        self._rows = {row.id: row for row in read(self.path)}

    @property
    def rows(self) -> list[Row]:
        """The last row of each job, sorted by id."""
        return [self._rows[key] for key in sorted(self._rows)]

    def forget_failed(self) -> None:
        """Drops the rows of failed jobs here, not in the file, where a later row of the same job replaces them."""
        self._rows = {key: row for key, row in self._rows.items() if row.failed is None}

    def begin(self) -> None:
        """Creates the file if it does not exist, and removes an incomplete last line.

        Raises:
            InputError: the file cannot be written, or another campaign has created it meanwhile.
        """
        if self._begun:
            return
        if self._handle is None:
            self._handle = _locked(self.path, os.O_CREAT | os.O_EXCL)
        with open(self.path, "rb") as stream:
            os.ftruncate(self._handle, stream.read().rfind(b"\n") + 1)
        self._begun = True

    def add(self, row: Row) -> None:
        """Appends a row, which is completely on the disk when this returns."""
        self.begin()
        assert self._handle is not None  # begin() has opened it
        line = to_line(row)
        if os.write(self._handle, line) != len(line):
            raise InputError(f"{file_name(self.path)}: the disk is full: the same command goes on when it is not")
        os.fsync(self._handle)
        self._rows[row.id] = row

    def close(self) -> None:
        """Releases the lock on the file."""
        if self._handle is not None:
            os.close(self._handle)


@contextmanager
def opened(path: str) -> Iterator[Store]:
    """The store of a file, which need not exist yet.

    Raises:
        InputError: the file cannot be written, another campaign is writing it, or as :func:`read`.
    """
    exists = os.path.lexists(path)
    if not exists and not os.access(os.path.dirname(path) or ".", os.W_OK | os.X_OK):
        raise InputError(f"{file_name(path)}: cannot be written: its directory is missing or not writable")
    store = Store(path, _locked(path) if exists else None)
    try:
        if exists:
            store.read()
        yield store
    finally:
        store.close()


def _locked(path: str, flags: int = 0) -> int:
    """Opens the file to append to it, with an exclusive lock."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o666)
    except FileExistsError:
        raise InputError(f"{file_name(path)}: another calibration made it meanwhile: the same command goes on from "
                         "there") from None
    except OSError as error:
        raise InputError(f"{file_name(path)}: cannot be written: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"{file_name(path)}: is not a regular file: name another with --measurements")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"{file_name(path)}: another calibration is writing it: wait for it, or name another file "
                         "with --measurements") from None
    except InputError:
        os.close(handle)
        raise
    return handle
