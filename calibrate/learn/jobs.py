"""Records a job at a shape, in a process of its own; what was recorded is kept until the formula is made."""

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
from calibrate.learn.recorded_job import STEPS, Recorded
from calibrate.learn.shapes import told
from calibrate.measure import job_prediction
from calibrate.measure.measure import default_device, measure
from calibrate.records.record import MeasuredOn
from predictor import snapshot
from predictor.common import gpus, storage
from predictor.common.errors import InputError
from predictor.common.gpus import DEFAULT as DEFAULT_GPU
from predictor.common.suggestions import show
from predictor.events.sizes import Shape
from predictor.jobs.dispatch import resolve
from predictor.version import VERSION
from predictor.workload.keys import PINNED
from predictor.workload.workload import Workload

COUNTERS = ("requested_bytes", "allocated_bytes", "reserved_bytes")
PLACEHOLDERS = {"batch": "{batch}", "sequence": "{sequence}", "images": "{images}"}
"""What stands in a script's command for the symbols: samples of a micro batch, tokens, images of a sample."""


class Ran(NamedTuple):
    """A job that was recorded: its peaks by counter, and where it ran (``measured_on``, ``gpu``, …)."""

    peaks: dict[str, int]
    about: dict[str, Any]


class Source(Protocol):
    """What can be recorded at any shape."""

    workload: Workload | None
    command: tuple[str, ...]
    rank: int
    world_size: int
    gpu: str | None

    def identity(self) -> Any:
        """Whatever decides a record, except the shape; plain data."""

    def record(self, shape: Shape, file: str) -> Ran:
        """Run it and write its history."""


@dataclass(frozen=True)
class WorkloadSource:
    """A workload in the reference loop. ``rank`` is the one that was chosen at its own shape."""

    workload: Workload
    device: MeasuredOn
    rank: int
    command: tuple[str, ...]
    events: str = "immediate"

    @staticmethod
    def of(workload: Workload, device: MeasuredOn | None, command: Sequence[str]) -> WorkloadSource:
        """With the rank settled.

        Raises:
            InputError: the worst rank is asked for and cannot be predicted.
        """
        device = device or default_device()
        if len(workload.image_sizes) > 1:
            raise InputError(f"image_size {workload.image_size}: a formula is learned of one size: give one")
        whole = resolve(workload).workload
        workload = workload.replace(images_per_sample=whole.images_per_sample, profile=None,
                                    gradient_checkpointing=whole.gradient_checkpointing)
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

    def record(self, shape: Shape, file: str) -> Ran:
        workload = self.workload.replace(per_device_train_batch_size=shape.batch,
                                         sequence_length=shape.sequence or None,
                                         images_per_sample=shape.images // shape.batch)
        found = measure(workload, device=self.device, snapshot=file, events=self.events)
        if found.job.out_of_memory:
            raise InputError(f"{named(shape)}: ran out of GPU memory: learn at smaller shapes, or on a larger GPU")
        job = found.job
        return Ran({name: found.peak(name).bytes for name in COUNTERS}, {
            "measured_on": job.measured_on.value, "gpu": self.gpu or _known(job.device.name),
            "capacity_bytes": self.workload.capacity or job.device.capacity_bytes, "software": dict(job.software),
            "allocator_conf": self.workload.allocator_conf})


SHAPE_KEYS = ("per_device_train_batch_size", "sequence_length", "images_per_sample")


@dataclass(frozen=True)
class ScriptSource:
    """A user's script on the emulated GPU; ``command`` with its placeholders."""

    command: tuple[str, ...]
    gpu: str
    capacity_bytes: int | None
    world_size: int
    pretends: bool
    rank: int
    workload: None = None

    def identity(self) -> Any:
        files = [[word, os.path.getmtime(word), os.path.getsize(word)] for word in self.command if os.path.isfile(word)]
        return [VERSION, self.command, files, os.getcwd(), self.gpu, self.capacity_bytes, self.world_size,
                self.pretends, self.rank]

    def at(self, shape: Shape) -> list[str]:
        """The command at a shape."""
        values = dict(zip(PLACEHOLDERS, (shape.batch, shape.sequence, shape.images // shape.batch)))
        words = list(self.command)
        for name, mark in PLACEHOLDERS.items():
            words = [word.replace(mark, str(values[name])) for word in words]
        return words

    def record(self, shape: Shape, file: str) -> Ran:
        with tempfile.TemporaryFile() as output:
            sys.stdout.flush()
            found = dryrun(self.at(shape), Machine(gpu=self.gpu, capacity_bytes=self.capacity_bytes), rank=self.rank,
                           world_size=self.world_size if self.pretends else None, optimizer_steps=STEPS,
                           streams=Streams(output.fileno(), output.fileno()), snapshot=file)
        if found.out_of_memory:
            raise InputError(f"{named(shape)}: ran out of GPU memory: learn at smaller shapes, or on a larger GPU")
        if found.exit_code:
            raise InputError(f"{named(shape)}: the script ended with exit code {found.exit_code}"
                             + (f": {show(found.exception, 300)[1:-1]}" if found.exception else ""))
        if found.optimizer_steps < STEPS:
            raise InputError(f"{named(shape)}: the script made {found.optimizer_steps} optimizer steps: {STEPS} are "
                             "needed, as the first makes the optimizer's states")
        conf = found.settings.get("PYTORCH_CUDA_ALLOC_CONF") or found.settings.get("PYTORCH_ALLOC_CONF")
        return Ran({name: getattr(found, f"peak_{name}") for name in COUNTERS}, {
            "measured_on": found.measured_on.value, "gpu": self.gpu, "capacity_bytes": found.capacity_bytes,
            "software": dict(found.software), "allocator_conf": conf})


class Shelf:
    """Where the records of a source lie until its formula is made: the same command goes on where it was."""

    def __init__(self, source: Source) -> None:
        self._source = source
        text = json.dumps(source.identity(), sort_keys=True, default=str)
        directory = storage.cache_directory() or storage.private()
        self.directory = directory / "learn" / hashlib.sha256(text.encode()).hexdigest()[:20]

    def get(self, shape: Shape) -> Recorded:
        """The record of a shape, from before or made now."""
        path = self.directory / f"{shape.batch}-{shape.sequence}-{shape.images}.npz"
        known = records.load(path)
        if known is not None:
            return known
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.directory}: cannot be made ({error.strerror}): set PEAKCAST_CACHE to a directory "
                             "that can be written") from None
        with tempfile.TemporaryDirectory(prefix="peakcast-") as directory:
            file = str(Path(directory) / "history.pickle")
            ran = self._source.record(shape, file)
            if not os.path.exists(file):
                raise InputError(f"{named(shape)}: left no memory history: it ended without its exit handlers")
            made = records.recorded(snapshot.read(file), shape, ran.peaks, ran.about, named(shape))
        records.save(path, made)
        return made

    def clear(self) -> None:
        """They are no longer needed."""
        shutil.rmtree(self.directory, ignore_errors=True)


def named(shape: Shape) -> str:
    """A shape in messages."""
    return f"the job of {told(shape)}"


def versions(about: dict[str, Any]) -> dict[str, str]:
    """Of what a workload names versions of, without local parts."""
    found = {name: about["software"].get(name) for name in PINNED}
    return {name: version.split("+")[0] for name, version in found.items() if version}


def _known(name: str) -> str | None:
    try:
        return gpus.find(name).name
    except InputError:
        return None
