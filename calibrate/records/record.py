"""What one measured job says: plain frozen data, and its JSON. Other files read records, jobs write them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from calibrate.records.moment_peaks import MomentPeaks
from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.json_dataclasses import from_plain, to_plain
from predictor.common.suggestions import named, version_text
from predictor.events.events import Moment

SCHEMA_VERSION = 1


class MeasuredOn(str, Enum):
    """Whether a real GPU did it."""

    DEVICE = "device"
    EMULATED = "emulated"


class RankChoice(str, Enum):
    """Who said which rank to measure."""

    WORKLOAD = "workload"
    PREDICTION = "prediction"  # the workload says "worst": the rank whose predicted requested peak is highest
    LAUNCHER = "launcher"  # torchrun started every rank, and each writes its own record


@dataclass(frozen=True)
class Device:
    """The GPU as PyTorch sees it. ``driver`` is NVML's version text, None where NVML does not answer.

    ``event_completion`` says when events of an emulated GPU complete (see ``calibrate.emulator``). ``injected`` is
    None, or what makes that GPU differ from its kind (``calibrate.emulator.Injection.read`` reads it): no
    measurement of that kind then. Records from before the field have none.
    """

    name: str
    capacity_bytes: int
    compute_capability: tuple[int, ...]
    multiprocessors: int
    driver: str | None
    event_completion: str | None
    injected: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Peak:
    """The largest value of one counter and the moment that reached it first."""

    bytes: int
    moment: Moment
    step: int


@dataclass(frozen=True)
class OutOfMemory:
    """PyTorch's error: what it says, when, and what it had tried to get from the device.

    ``tried_to_allocate_bytes`` is a whole segment (the allocator rounds small requests up to 2 or
    20 MiB); None if something other than the caching allocator ran out.
    """

    message: str
    moment: Moment
    step: int
    tried_to_allocate_bytes: int | None


@dataclass(frozen=True)
class MeasuredJob:
    """What the job process found. Peaks and statistics are of the whole job, resets or not.

    Attributes:
        settings: environment variables that change what is allocated, where they were set.
        moments: a row for each moment of each step that was reached.
        memory_stats: ``torch.cuda.memory_stats`` at the end.
        device_used_bytes: largest total minus free of ``cudaMemGetInfo`` at any boundary, whoever used it.
        nvml_used_bytes: used memory of the device at the end as NVML reports it; None without NVML.
        process_group: what stood for the other ranks: ``none``, PyTorch's ``fake`` group, ``nccl`` with
            nobody behind it, or ``launched``: they were there.
    """

    measured_on: MeasuredOn
    device: Device
    software: Mapping[str, str | None]
    settings: Mapping[str, str]
    process_group: str
    moments: tuple[MomentPeaks, ...]
    out_of_memory: OutOfMemory | None
    memory_stats: Mapping[str, int]
    device_used_bytes: int
    nvml_used_bytes: int | None
    started_at: str
    finished_at: str
    seconds: float


@dataclass(frozen=True)
class Predicted:
    """What the predictor says of the same rank; ``moments`` has requested bytes only."""

    peak_requested: Peak
    moments: tuple[PredictedMoment, ...]


@dataclass(frozen=True)
class PredictedMoment:
    """Largest requested bytes of a moment of a step, what was there when it began included."""

    step: int
    moment: Moment
    requested_bytes: int


@dataclass(frozen=True)
class InTraining:
    """What differs where the peaks are of the user's own training (``calibrate.training``).

    PyTorch's counters are never reset there, so ``MeasuredJob.moments`` has a row only for a moment that raised a
    counter above all before it: that counter's value is its own largest, the others are the largest so far.

    Attributes:
        loop: ``transformers.Trainer``, or ``watch`` for a loop of the user's.
        steps: how many optimizer steps were complete.
        batches: the micro-batches than which no other that ran was larger, as text such as ``2 x 64 tokens``.
        warnings: what was said of memory that might run out.
        smaller: the other shapes that ran while it counted, each within one of ``batches``.
        evaluations: of the batches that were evaluated until then, those than which no other was larger.
    """

    loop: str
    steps: int
    batches: tuple[str, ...]
    warnings: tuple[str, ...]
    smaller: tuple[str, ...] = ()
    evaluations: tuple[str, ...] = ()


def shape_text(samples: int, tokens: int | None) -> str:
    """How a batch is named in a record."""
    return f"{samples:,} x {tokens:,} tokens" if tokens else f"{samples:,}"


@dataclass(frozen=True)
class Record:
    """One measurement with everything that is needed to repeat it.

    Attributes:
        workload: every key with its value, as :meth:`predictor.workload.workload.Workload.resolved` gives it.
        rank: which rank of ``data_parallel_size`` the process was.
        command: the words of the command line.
        snapshot: path of the memory history, if one was asked for.
        not_predicted: why ``predicted`` is None.
        in_training: of a training that was not run for the measurement; else None.
    """

    schema_version: int
    peakcast_version: str
    workload: Mapping[str, Any]
    rank: int
    rank_chosen_by: RankChoice
    job: MeasuredJob
    command: tuple[str, ...]
    snapshot: str | None
    predicted: Predicted | None
    not_predicted: str | None
    in_training: InTraining | None = None

    def check_shapes(self) -> None:
        """Refuses a training whose batches no one workload describes.

        Raises:
            InputError: batches of several shapes ran, or others were evaluated than the workload says.
        """
        if self.in_training is None:
            return
        shapes, evaluated = self.in_training.batches + self.in_training.smaller, self.in_training.evaluations
        if len(shapes) > 1:
            raise InputError("batches of several shapes ran in these steps, and a workload has one: "
                             f"{', '.join(shapes)}")
        size, tokens = self.workload.get("per_device_eval_batch_size"), self.workload.get("sequence_length")
        if evaluated != ((shape_text(size, tokens),) if size else ()):
            raise InputError(f"batches of {', '.join(evaluated) or 'nothing'} were evaluated, and the workload has "
                             f"per_device_eval_batch_size {size}, sequence_length {tokens}")

    def peak(self, counter: str) -> Peak:
        """Largest value of ``requested_bytes``, ``allocated_bytes`` or ``reserved_bytes``."""
        row = max(self.job.moments, key=lambda row: getattr(row, counter))  # max keeps the first of equals
        return Peak(getattr(row, counter), row.moment, row.step)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON's types; the overall peaks are repeated at the top for readers."""
        document = to_plain(self)
        for counter in ("requested", "allocated", "reserved"):
            peak = self.peak(f"{counter}_bytes")
            document[f"peak_{counter}_bytes"] = peak.bytes
            document[f"peak_{counter}_at"] = {"moment": peak.moment.value, "step": peak.step}
        return document


def read(path: str | os.PathLike[str]) -> Record:
    """A record from its file.

    Raises:
        InputError: not a record, of another schema version, or with a key missing, unknown or of the
            wrong type.
    """
    name = named(path)
    document = read_mapping(path, "the measurement")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"{name}: schema_version is {version_text(version)}, not {SCHEMA_VERSION}: "
                         "this is no measurement of this release of peakcast")
    for counter in ("requested", "allocated", "reserved"):
        for part in ("bytes", "at"):
            document.pop(f"peak_{counter}_{part}", None)
    return from_plain(Record, document, name)
