"""Records a job at a shape in a separate process, and caches the record until the formula is written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from calibrate.dryrun.dryrun import Streams, dryrun
from calibrate.emulator import Machine
from calibrate.learn import recorded_job as records
from calibrate.learn.recorded_job import STEPS, RecordedJob
from calibrate.learn.shapes import shape_text
from calibrate.measure import job_prediction
from calibrate.measure.measure import default_device, measure
from calibrate.records.record import MeasuredOn
from predictor import snapshot
from predictor.common import gpus, storage
from predictor.common.errors import InputError
from predictor.common.gpus import DEFAULT as DEFAULT_GPU
from predictor.common.suggestions import quoted
from predictor.events.sizes import Shape
from predictor.jobs.dispatch import resolve
from predictor.version import VERSION
from predictor.workload.keys import PINNED
from predictor.workload.workload import Workload

COUNTERS = ("requested_bytes", "allocated_bytes", "reserved_bytes")
PLACEHOLDERS = {"batch": "{batch}", "sequence": "{sequence}", "images": "{images}"}
"""Placeholders in a script's command: samples of a micro-batch, tokens of a sample, images of a sample."""


class JobResult(NamedTuple):
    """Result of a recorded job: peaks by counter in bytes, and where it ran (``measured_on``, ``gpu``, …)."""

    peaks: dict[str, int]
    about: dict[str, Any]


class Source(Protocol):
    """A job that can be recorded at any shape."""

    @property
    def workload(self) -> Workload | None: ...

    @property
    def command(self) -> tuple[str, ...]: ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def gpu(self) -> str | None: ...

    def identity(self) -> Any:
        """Everything that decides a record, except the shape, as plain data."""

    def record(self, shape: Shape, file: str) -> JobResult:
        """Run the job at a shape and write its memory history."""


@dataclass(frozen=True)
class WorkloadSource:
    """A workload in the reference loop. ``rank`` was chosen at the workload's own shape."""

    workload: Workload
    device: MeasuredOn
    rank: int
    command: tuple[str, ...]
    events: str = "immediate"

    @staticmethod
    def of(workload: Workload, device: MeasuredOn | None, command: Sequence[str]) -> WorkloadSource:
        """The source of a workload, with its rank chosen.

        Raises:
            InputError: the workload has several image sizes, or its worst rank cannot be predicted.
        """
        device = device or default_device()
        if len(workload.image_sizes) > 1:
            raise InputError(f"image_size {workload.image_size}: a formula is learned of one size: give one")
        resolved = resolve(workload).workload
        workload = workload.replace(images_per_sample=resolved.images_per_sample, profile=None,
                                    gradient_checkpointing=resolved.gradient_checkpointing)
        if device is MeasuredOn.EMULATED:
            workload = workload.replace(gpu=workload.gpu or DEFAULT_GPU)
        rank, _ = job_prediction.choose_rank(workload)
        return WorkloadSource(workload.replace(rank=rank), device, rank, tuple(command))

    @property
    def world_size(self) -> int:
        return self.workload.world_size

    @property
    def gpu(self) -> str | None:
        return self.workload.gpu

    def identity(self) -> Any:
        keys = self.workload.resolved()
        return [VERSION, self.device.value, self.events,
                {key: value for key, value in keys.items() if key not in SHAPE_KEYS}]

    def record(self, shape: Shape, file: str) -> JobResult:
        workload = self.workload.replace(per_device_train_batch_size=shape.batch,
                                         sequence_length=shape.sequence or None,
                                         images_per_sample=shape.images // shape.batch)
        measured = measure(workload, device=self.device, snapshot=file, events=self.events)
        if measured.job.out_of_memory:
            raise InputError(f"{job_text(shape)}: ran out of GPU memory: learn at smaller shapes, or on a larger GPU")
        job = measured.job
        return JobResult({name: measured.peak(name).bytes for name in COUNTERS}, {
            "measured_on": job.measured_on.value, "gpu": self.gpu or _known_gpu(job.device.name),
            "capacity_bytes": self.workload.capacity or job.device.capacity_bytes, "software": dict(job.software),
            "allocator_conf": self.workload.allocator_conf})


SHAPE_KEYS = ("per_device_train_batch_size", "sequence_length", "images_per_sample")


@dataclass(frozen=True)
class ScriptSource:
    """A user's script on the emulated GPU. ``command`` contains the placeholders.

    Attributes:
        pretends: whether one process acts as one of ``world_size`` ranks; otherwise the command starts all of them.
        streams: where its output goes; None: nowhere.
    """

    command: tuple[str, ...]
    gpu: str
    capacity_bytes: int | None
    world_size: int
    pretends: bool
    rank: int
    workload: None = None
    streams: Streams | None = None

    def identity(self) -> Any:
        files = [[word, os.path.getmtime(word), os.path.getsize(word)] for word in self.command if os.path.isfile(word)]
        return [VERSION, self.command, files, os.getcwd(), self.gpu, self.capacity_bytes, self.world_size,
                self.pretends, self.rank]

    def at(self, shape: Shape) -> list[str]:
        """The command with a shape's values in place of the placeholders."""
        values = dict(zip(PLACEHOLDERS, (shape.batch, shape.sequence, shape.images // shape.batch)))
        words = list(self.command)
        for name, mark in PLACEHOLDERS.items():
            words = [word.replace(mark, str(values[name])) for word in words]
        return words

    def record(self, shape: Shape, file: str) -> JobResult:
        with tempfile.TemporaryFile() as output:
            streams = self.streams or Streams(output.fileno(), output.fileno())
            sys.stdout.flush()
            result = dryrun(self.at(shape), Machine(gpu=self.gpu, capacity_bytes=self.capacity_bytes), rank=self.rank,
                           world_size=self.world_size if self.pretends else None, optimizer_steps=STEPS,
                           streams=streams, snapshot=file)
        if result.out_of_memory:
            raise InputError(f"{job_text(shape)}: ran out of GPU memory: learn at smaller shapes, or on a larger GPU")
        if result.exit_code:
            raise InputError(f"{job_text(shape)}: the script ended with exit code {result.exit_code}"
                             + (f": {quoted(result.exception, 300)[1:-1]}" if result.exception else ""))
        if result.optimizer_steps < STEPS:
            raise InputError(f"{job_text(shape)}: the script made {result.optimizer_steps} optimizer steps: {STEPS} "
                             "are needed, because the first one creates the optimizer states")
        conf = result.settings.get("PYTORCH_CUDA_ALLOC_CONF") or result.settings.get("PYTORCH_ALLOC_CONF")
        return JobResult({name: getattr(result, f"peak_{name}") for name in COUNTERS}, {
            "measured_on": result.measured_on.value, "gpu": self.gpu, "capacity_bytes": result.capacity_bytes,
            "software": dict(result.software), "allocator_conf": conf, "rank": result.rank,
            "world_size": result.world_size})


class RecordCache:
    """Cache of a source's records until its formula is written. The same command continues where it stopped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        text = json.dumps(source.identity(), sort_keys=True, default=str)
        directory = storage.cache_directory() or storage.private_directory()
        self.directory = directory / "learn" / hashlib.sha256(text.encode()).hexdigest()[:20]

    def get(self, shape: Shape) -> RecordedJob:
        """The record of a shape, from the cache or recorded now."""
        path = self.directory / f"{shape.batch}-{shape.sequence}-{shape.images}.npz"
        cached = records.load(path)
        if cached is not None:
            return cached
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.directory}: cannot be made ({error.strerror}): set PEAKCAST_CACHE to a directory "
                             "that can be written") from None
        with tempfile.TemporaryDirectory(prefix="peakcast-") as directory:
            file = str(Path(directory) / "history.pickle")
            result = self._source.record(shape, file)
            if not os.path.exists(file):
                raise InputError(f"{job_text(shape)}: left no memory history: it ended without its exit handlers")
            job = records.from_history(snapshot.read(file), shape, result.peaks, result.about, job_text(shape))
        records.save(path, job)
        return job

    def clear(self) -> None:
        """Deletes the cached records."""
        shutil.rmtree(self.directory, ignore_errors=True)


def job_text(shape: Shape) -> str:
    """A job in messages, by its shape."""
    return f"the job of {shape_text(shape)}"


def versions(about: dict[str, Any]) -> dict[str, str]:
    """Versions of the packages that a workload pins, without local parts."""
    releases = {name: about["software"].get(name) for name in PINNED}
    return {name: version.split("+")[0] for name, version in releases.items() if version}


def _known_gpu(name: str) -> str | None:
    try:
        return gpus.find(name).name
    except InputError:
        return None
