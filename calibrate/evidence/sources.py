"""Other people's measurements: what was run, on which GPU, what was measured, and where that is published."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.json_dataclasses import from_plain, to_plain

DIRECTORY = Path(__file__).resolve().parents[2] / "profiles" / "evidence" / "real_gpus"
SOURCES = "sources"
QUANTITIES = ("requested_bytes", "allocated_bytes", "reserved_bytes", "device_bytes")
"""What is measured: the sum of the tensors, max_memory_allocated, max_memory_reserved, nvidia-smi."""
FORMS = ("workload", "command", "report", "operator", "recording")
"""The ways in which a job is given; each has exactly one."""


class Kind(str, Enum):
    """What a row measures. The headline counts operators and replayed recordings apart."""

    TRAINING = "training job"
    FORWARD = "forward pass"
    INFERENCE = "inference"
    OPERATOR = "operator"
    RECORDING = "recording, replayed"


class Basis(str, Enum):
    """How sure the reconstruction of a job is.

    ``PUBLISHED``: the source states every setting, or its own code sets them. ``ASSUMED``: at least one setting that
    changes the memory was chosen by us, before the error was seen; the note names it.
    """

    PUBLISHED = "published"
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Printed:
    """A figure in what a script prints: the pattern's first group, in units of so many bytes."""

    pattern: str
    unit_bytes: int


@dataclass(frozen=True)
class Command:
    """The author's own script, run unchanged on an emulated GPU (``peakcast dryrun``).

    ``{checkouts}`` stands for a directory that has the checkout of each repository as ``OWNER+NAME``; ``{out}`` for an
    empty directory. The script runs in ``{out}/run``.

    Attributes:
        words: the command line.
        python_path: what ``PYTHONPATH`` has.
        environment: further variables.
        directories: what must exist before it starts, relative to where it runs.
        world_size: ranks of ``torch.distributed``, of which the first runs; 0: none.
        prints: quantity -> where the output has it.
        snapshot: the memory history that the script writes; its peaks are the prediction. Empty: ``prints`` has them.
    """

    words: tuple[str, ...]
    python_path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    world_size: int = 0
    prints: Mapping[str, Printed] = field(default_factory=dict)
    snapshot: str = ""


@dataclass(frozen=True)
class Report:
    """A peak of :mod:`calibrate.checks.gemma_report`: the number of its job and the name of its moment."""

    job: int
    moment: str


@dataclass(frozen=True)
class Operator:
    """A call of :mod:`calibrate.checks.liger_operators`."""

    name: str
    x: int
    mode: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """What was run, in one of the :data:`FORMS`.

    Attributes:
        workload: keys of ``peakcast predict``; a ``model`` that ends in ``.json`` lies beside the rows.
        recording: path of a memory history in its repository, whose events the simulated allocator replays.
    """

    workload: Mapping[str, Any] | None = None
    command: Command | None = None
    report: Report | None = None
    operator: Operator | None = None
    recording: str = ""

    @property
    def form(self) -> str:
        """The form of the job, one of :data:`FORMS`."""
        return next(name for name in FORMS if getattr(self, name))

    @property
    def without_moment(self) -> Job:
        """The job alone, without the moment at which its memory was read."""
        return replace(self, command=self.command and replace(self.command, prints={}, snapshot=""),
                       report=self.report and replace(self.report, moment=""))


@dataclass(frozen=True)
class Row:
    """One measured job.

    Attributes:
        id: unique within the source.
        gpu: as the source names it; empty: it does not.
        emulated: the GPU that the prediction is for, by peakcast's name: the same, or the nearest that peakcast knows.
        capacity_bytes: memory of that GPU; 0: its own.
        versions: of packages, as far as the source says.
        where: file and line, page or comment.
        measured: quantity -> bytes.
        rounding_bytes: one unit of the last published digit.
        fitted: which setting was chosen after the error was seen. Such rows are not in the headline.
        cause: why the prediction is off, if it is.
        recording: the memory history that was recorded, with which the run's is compared event by event.
    """

    id: str
    kind: Kind
    gpu: str
    emulated: str
    where: str
    job: Job
    measured: Mapping[str, int]
    rounding_bytes: int = 1
    capacity_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    basis: Basis = Basis.PUBLISHED
    fitted: str = ""
    cause: str = ""
    note: str = ""
    recording: str = ""

    @property
    def digest(self) -> str:
        """A fingerprint of the reconstruction. A prediction that was made for another one is stale."""
        return fingerprint(self.job, self.emulated, self.capacity_bytes)

    @property
    def run(self) -> str:
        """A fingerprint of what was run: rows that share it are figures of one job, at several moments."""
        return fingerprint(self.job.without_moment, self.gpu, self.emulated, self.capacity_bytes)


@dataclass(frozen=True)
class Unreconstructed:
    """Measurements of a source that are not predicted, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Source:
    """One repository, thread or report with measurements.

    Attributes:
        name: ``OWNER/NAME`` of the repository.
        commit: of the files that were read; empty for a thread.
        license: under which the source is published; of sources without one only facts and figures are here.
        about: what was measured and how.
    """

    name: str
    license: str
    about: str
    commit: str = ""
    rows: tuple[Row, ...] = ()
    not_reconstructed: tuple[Unreconstructed, ...] = ()

    @property
    def checkout(self) -> str:
        """Name of the directory of its checkout."""
        return self.name.replace("/", "+")


def fingerprint(*parts: Any) -> str:
    """A short text that differs when a part does."""
    return hashlib.sha256(json.dumps(to_plain(parts), sort_keys=True).encode()).hexdigest()[:16]


def read_all(directory: Path = DIRECTORY) -> tuple[Source, ...]:
    """All sources, by file name.

    Raises:
        InputError: a file is not valid.
    """
    return tuple(read(path) for path in sorted((directory / SOURCES).glob("*.json")))


def read(path: Path) -> Source:
    """The source in a file. Its ``shared`` keys are those that all its rows have in common.

    Raises:
        InputError: a key is missing or unknown, or a value does not fit.
    """
    document = read_mapping(path, "a source of evidence")
    shared = document.pop("shared", {})
    rows = [_merged(shared, row) for row in document.get("rows", [])]
    source: Source = from_plain(Source, {**document, "rows": rows}, path.name)
    for problem in _problems(source):
        raise InputError(f"{path.name}: {problem}")
    return source


def _merged(shared: Any, own: Any) -> Any:
    """``own`` over ``shared``, mappings key by key."""
    if not (isinstance(shared, Mapping) and isinstance(own, Mapping)):
        return own
    return {key: _merged(shared[key], own[key]) if key in shared and key in own else own.get(key, shared.get(key))
            for key in {**shared, **own}}


def _problems(source: Source) -> Iterator[str]:
    names = [row.id for row in source.rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"rows of the same id: {', '.join(twice)}"
    for row in source.rows:
        if not row.measured or set(row.measured) - set(QUANTITIES):
            yield f"{row.id}: measured has {', '.join(row.measured) or 'nothing'}: known are {', '.join(QUANTITIES)}"
        if any(value <= 0 for value in row.measured.values()):
            yield f"{row.id}: measured bytes must be positive"
        if sum(bool(getattr(row.job, name)) for name in FORMS) != 1:
            yield f"{row.id}: a job has exactly one of {', '.join(FORMS)}"
        if row.basis is Basis.ASSUMED and not row.note:
            yield f"{row.id}: an assumed setting needs a note that names it"
