"""The record of one measured job: frozen dataclasses, and the functions that read and write their JSON."""

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
from predictor.common.suggestions import file_name, quoted, version_text
from predictor.events.events import Moment
from predictor.workload.code_names import NOT_RUN, is_code_name

COUNTERS = ("requested", "allocated", "reserved")
"""Whose peaks a record repeats at its top level."""
SCHEMA_VERSION = 1


class MeasuredOn(str, Enum):
    """The type of device of a measurement: a real GPU or an emulated one."""

    DEVICE = "device"
    EMULATED = "emulated"


class RankChoice(str, Enum):
    """The source of the choice of rank."""

    WORKLOAD = "workload"
    PREDICTION = "prediction"  # the workload's rank is "worst": the rank with the highest predicted requested peak
    LAUNCHER = "launcher"  # torchrun started every rank; each writes its own record


@dataclass(frozen=True)
class Device:
    """The GPU as PyTorch reports it. ``driver`` is NVML's version text, None where NVML does not answer.

    ``event_completion`` says when events of an emulated GPU complete (see ``calibrate.emulator``). ``injected`` has the
    differences injected into an emulated GPU (``calibrate.emulator.Injection.read`` reads it), or is None. With
    injections, the record is no measurement of that GPU model. Older records lack this field.
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
    """The largest value of one counter, in bytes, and the moment that reached it first."""

    bytes: int
    moment: Moment
    step: int


@dataclass(frozen=True)
class OutOfMemory:
    """PyTorch's out-of-memory error: its message, its moment and the failed allocation.

    ``tried_to_allocate_bytes`` is a whole segment (the allocator rounds small requests up to 2 or
    20 MiB). It is None if something other than the caching allocator ran out of memory.
    """

    message: str
    moment: Moment
    step: int
    tried_to_allocate_bytes: int | None


@dataclass(frozen=True)
class MeasuredJob:
    """The measurements of the job's process. Peaks and statistics cover the whole job, in spite of resets.

    Attributes:
        settings: the environment variables that affect allocations and were set.
        moments: a row for each moment of each step that was reached.
        memory_stats: ``torch.cuda.memory_stats`` at the end.
        device_used_bytes: the largest used memory (total minus free of ``cudaMemGetInfo``) at any boundary of the
            loop, of all processes.
        nvml_used_bytes: used memory of the device at the end as NVML reports it; None without NVML.
        process_group: the process group of the job: ``none``, PyTorch's ``fake`` group, ``nccl`` without the other
            ranks, or ``launched``: all ranks ran.
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
    """The prediction for the same rank. ``moments`` has requested bytes only."""

    peak_requested: Peak
    moments: tuple[PredictedMoment, ...]


@dataclass(frozen=True)
class PredictedMoment:
    """The largest predicted requested bytes during a moment of a step, including those from before the moment."""

    step: int
    moment: Moment
    requested_bytes: int


@dataclass(frozen=True)
class InTraining:
    """Additional facts of a record of the user's own training (``calibrate.training``).

    PyTorch's counters are never reset there. So ``MeasuredJob.moments`` has a row only for a moment that raised a
    counter above all earlier values: this counter's value is the moment's own peak, the others are the largest so far.

    Attributes:
        loop: ``transformers.Trainer``, or ``watch`` for the user's own loop.
        steps: number of completed optimizer steps.
        batches: the largest micro-batches that ran: no other one exceeds them. Text such as ``2 x 64 tokens``.
        warnings: the warnings that memory may run out.
        smaller: the other shapes that ran during the measurement. Each one fits into one of ``batches``.
        evaluations: the largest batches that were evaluated during the measurement.
    """

    loop: str
    steps: int
    batches: tuple[str, ...]
    warnings: tuple[str, ...]
    smaller: tuple[str, ...] = ()
    evaluations: tuple[str, ...] = ()


def shape_text(samples: int, tokens: int | None) -> str:
    """The text of a batch's shape in a record: "2 x 64 tokens", or only the number of samples."""
    return f"{samples:,} x {tokens:,} tokens" if tokens else f"{samples:,}"


@dataclass(frozen=True)
class Record:
    """One measurement with everything that is needed to repeat it.

    Attributes:
        workload: every key with its value, as :meth:`predictor.workload.workload.Workload.resolved` returns it.
        rank: the rank of the measured process.
        command: the words of the command line.
        snapshot: path of the memory history, if it was written.
        not_predicted: the reason why ``predicted`` is None.
        in_training: additional facts of the user's own training. None if peakcast ran the job.
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
        """Rejects a training whose batches no single workload describes.

        Raises:
            InputError: batches of several shapes ran, or evaluated batches differ from the workload's.
        """
        if self.in_training is None:
            return
        shapes, evaluated = self.in_training.batches + self.in_training.smaller, self.in_training.evaluations
        if len(shapes) > 1:
            raise InputError("batches of several shapes ran in these steps, but a workload has one shape: "
                             f"{', '.join(shapes)}")
        size, tokens = self.workload.get("per_device_eval_batch_size"), self.workload.get("sequence_length")
        if evaluated != ((shape_text(size, tokens),) if size else ()):
            raise InputError(f"batches of {', '.join(evaluated) or 'nothing'} were evaluated, but the workload has "
                             f"per_device_eval_batch_size {size}, sequence_length {tokens}")

    def check_model(self) -> None:
        """Rejects a model in Python: predicting it would run what somebody else's file names.

        Raises:
            InputError: the model is code.
        """
        model = str(self.workload.get("model"))
        if is_code_name(model):
            raise InputError(f"its model {quoted(model, 200)} {NOT_RUN}")

    def peak(self, counter: str) -> Peak:
        """The largest value of ``requested_bytes``, ``allocated_bytes`` or ``reserved_bytes``, and its first moment."""
        row = max(self.job.moments, key=lambda row: getattr(row, counter))  # max keeps the first of equals
        return Peak(getattr(row, counter), row.moment, row.step)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON types. The overall peaks are repeated at the top level for readers."""
        document = to_plain(self)
        for counter in COUNTERS:
            peak = self.peak(f"{counter}_bytes")
            document[f"peak_{counter}_bytes"] = peak.bytes
            document[f"peak_{counter}_at"] = {"moment": peak.moment.value, "step": peak.step}
        return document


def read(path: str | os.PathLike[str]) -> Record:
    """Reads a record from its JSON file.

    Raises:
        InputError: the file is not a record, has another schema version, or has a key that is missing, unknown or of
            the wrong type.
    """
    name = file_name(path)
    document = read_mapping(path, "the measurement")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"{name}: schema_version is {version_text(version)}, not {SCHEMA_VERSION}: "
                         "this is no measurement of this release of peakcast")
    names = [f"peak_{counter}_{part}" for counter in COUNTERS for part in ("bytes", "at")]
    repeated = {key: document.pop(key) for key in names if key in document}
    record = from_plain(Record, document, name)
    if not record.job.moments:
        raise InputError(f"{name}: it has no moments: nothing was measured")
    of_moments = record.to_json() if repeated else {}
    for key, value in repeated.items():
        if value != of_moments[key]:
            raise InputError(f"{name}: {key} is {quoted(value)}, but its moments say {quoted(of_moments[key])}: the "
                             "record was edited, or is damaged")
    return record
