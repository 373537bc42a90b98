"""Public reports of jobs that ran out of GPU memory, or just ran, beside the verdict that peakcast gives.

A report's job has the form of a row's job: keys of ``peakcast predict``, or the author's own script on an emulated GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path

from calibrate.evidence import kept_lines
from calibrate.evidence.sources import DIRECTORY, Basis, Job, Unreconstructed, fingerprint
from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.json_dataclasses import from_plain

FILE = DIRECTORY / "out_of_memory.json"
PREDICTIONS = DIRECTORY / "verdicts.jsonl"


class Happened(str, Enum):
    """What the report says of the job."""

    RAN = "ran"
    OUT_OF_MEMORY = "ran out of memory"


class Verdict(str, Enum):
    """What is predicted: the words of ``predict --json``."""

    FITS = "fits"
    UNCERTAIN = "uncertain"
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True)
class Revision:
    """How a report was read again after its verdict was seen.

    Attributes:
        setting: what was changed or added.
        first_verdict: what was predicted before.
        source: where the author's own command or code has the setting; empty if it was chosen.
    """

    setting: str
    first_verdict: Verdict
    source: str = ""

    @property
    def is_fitted(self) -> bool:
        """Whether the setting was chosen. Such reports are not in the headline."""
        return not self.source


@dataclass(frozen=True)
class Thread:
    """One report.

    Attributes:
        id: unique.
        where: ``OWNER/NAME#NUMBER`` of an issue, or the file of a repository at a commit.
        checkout: directory of the repository's checkout, for a script.
        said: figures of PyTorch's message in bytes: tried, allocated, idle, free, total, outside.
        capacity_bytes: memory of the GPU that was PyTorch's to take: the total less what the message counts outside
            PyTorch, or the GPU's own if there is no message.
        cause: why the verdict is wrong, if it is.
    """

    id: str
    where: str
    gpu: str
    emulated: str
    happened: Happened
    job: Job
    said: Mapping[str, int] = field(default_factory=dict)
    capacity_bytes: int = 0
    checkout: str = ""
    basis: Basis = Basis.PUBLISHED
    note: str = ""
    cause: str = ""
    revision: Revision | None = None

    @property
    def is_fitted(self) -> bool:
        """Whether a setting was chosen after the verdict was seen."""
        return self.revision is not None and self.revision.is_fitted

    def first_verdict(self, verdict: Verdict) -> Verdict:
        """What was predicted at first, from what is predicted now."""
        return self.revision.first_verdict if self.revision else verdict

    def is_false_fit(self, verdict: Verdict) -> bool:
        """Whether it ran out of memory, and the verdict is that it fits."""
        return self.happened is Happened.OUT_OF_MEMORY and verdict is Verdict.FITS

    @property
    def digest(self) -> str:
        """A fingerprint of the reconstruction."""
        return fingerprint(self.job, self.emulated, self.capacity_bytes)


@dataclass(frozen=True)
class Judged:
    """What was predicted for a report.

    Attributes:
        reserved_bytes: peak of reserved memory, if the job survives.
        allocated_bytes: if it does not: what was allocated when it failed, as far as the script printed it.
        tried_bytes: the same of the allocation that failed.
    """

    thread: str
    digest: str
    date: str
    verdict: Verdict
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    tried_bytes: int = 0


@dataclass(frozen=True)
class Threads:
    """All reports with their verdicts."""

    threads: tuple[Thread, ...]
    judged: Mapping[str, Judged]
    not_reconstructed: tuple[Unreconstructed, ...] = ()

    @cached_property
    def pairs(self) -> list[tuple[Thread, Judged]]:
        """The reports whose present reconstruction has a verdict."""
        found = ((thread, self.judged.get(thread.id)) for thread in self.threads)
        return [(thread, judged) for thread, judged in found
                if judged is not None and judged.digest == thread.digest]

    @cached_property
    def judged_pairs(self) -> list[tuple[Thread, Judged]]:
        """Those of the headline: no setting was chosen after the verdict was seen."""
        return [(thread, judged) for thread, judged in self.pairs if not thread.is_fitted]

    @property
    def false_fits(self) -> list[Thread]:
        """Jobs of the headline that ran out of memory, and of which peakcast says that they fit."""
        return [thread for thread, judged in self.judged_pairs if thread.is_false_fit(judged.verdict)]

    @property
    def false_fits_at_first(self) -> list[Thread]:
        """The false fits of the first verdicts, fitted reports included."""
        return [thread for thread, judged in self.pairs if thread.is_false_fit(thread.first_verdict(judged.verdict))]

    @property
    def false_alarms(self) -> list[Thread]:
        """Jobs of the headline that ran, and of which peakcast says that they do not fit."""
        return [thread for thread, judged in self.judged_pairs
                if judged.verdict is Verdict.DOES_NOT_FIT and thread.happened is Happened.RAN]


def read(path: Path = FILE, verdicts: Path = PREDICTIONS) -> Threads:
    """The reports of a file, with the verdicts of another.

    Raises:
        InputError: a file is not valid.
    """
    document = read_mapping(path, "reports of jobs that ran out of memory")
    threads = from_plain(tuple[Thread, ...], document.get("threads", []), path.name)
    names = [thread.id for thread in threads]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path.name}: threads of the same id: {', '.join(twice)}")
    judged = kept_lines.read(Judged, verdicts, "verdicts")
    reasons = from_plain(tuple[Unreconstructed, ...], document.get("not_reconstructed", []), path.name)
    return Threads(threads, {entry.thread: entry for entry in judged}, reasons)


def write(entries: Mapping[str, Judged], path: Path = PREDICTIONS) -> None:
    """Writes a file with these verdicts, ordered by report."""
    kept_lines.write([entries[name] for name in sorted(entries)], path)
