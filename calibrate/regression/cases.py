"""The cases of a report: one :class:`Case` for each measured job, whatever file format it came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrate.campaign.rows import Unexplained
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.value_types import Table
from predictor.workload.keys import KEYS, PINNED
from predictor.workload.workload import Workload

COUNTERS = ("requested", "allocated", "reserved", "device")
"""Names of the peaks, in this order everywhere: ``requested_bytes.all.peak``, ``max_memory_allocated``,
``max_memory_reserved``, and the used memory that NVML reports."""
LABELS = ("model", "recipe", "engine", "data_parallel_size", "gpu", "measured_on")
"""Keys of :attr:`Case.labels`, by which summaries group cases."""


@dataclass(frozen=True)
class Cause(Unexplained):
    """Buffers that count differently in measurement and prediction, as recorded. ``factor`` is None if not recorded."""

    factor: str | None = None

    @property
    def difference_bytes(self) -> int:
        """Predicted less measured bytes."""
        return self.predicted_bytes - self.measured_bytes


@dataclass(frozen=True)
class Case:
    """One measured job.

    Attributes:
        workload: the workload with its rank, GPU and capacity, without a profile.
        measured_on: ``device`` (a real GPU) or ``emulated``.
        gpu: known name of the GPU; its product name if it is unknown.
        software: package -> version where it ran; empty if not recorded.
        date: ISO date; empty if unknown.
        completion: when CUDA events complete (``calibrate.emulator``); ``immediate`` on a real GPU (unknown there).
        communicates: whether a process group created communicators on the device.
        survived: whether the job ran to its end. If False, it ran out of GPU memory: its peaks, if any, are lower
            bounds, and only its verdict counts.
        peaks: counter -> bytes; None if not measured. ``device`` is None on an emulated GPU, which has no CUDA context
            and no libraries.
        moment, step: of the requested peak; None if unknown.
        causes: buffers that counted differently at the requested peak, for the release that measured; empty if not
            recorded.
        snapshot: path of the memory history, as recorded.
        file, line: the place it was read from; ``line`` is 0 for a file that holds one record.
        group: the name that the campaign or check gives to the feature that this job varies.
    """

    workload: Workload
    measured_on: str
    gpu: str
    software: Mapping[str, str | None]
    date: str
    completion: str
    communicates: bool
    survived: bool
    peaks: Mapping[str, int | None]
    moment: str | None
    step: int | None
    file: str
    line: int
    group: str = ""
    causes: tuple[Cause, ...] = ()
    snapshot: str | None = field(default=None, repr=False)

    @cached_property
    def identity(self) -> str:
        """Text that is equal for two measurements of the same job: workload, rank, GPU, software, completion."""
        versions = {name: self.versions.get(name, "") for name in PINNED}
        workload = self.workload.resolved() | {"model": self.model}
        return json.dumps([workload, self.measured_on, self.gpu, versions, self.completion], sort_keys=True)

    @property
    def versions(self) -> dict[str, str]:
        """The releases of ``software`` on which predictions depend, without local labels such as ``+cu130``."""
        return {name: version.split("+")[0] for name in PINNED if (version := self.software.get(name))}

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits, equal for the same job."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:12]

    @property
    def model(self) -> str:
        """The model's known name, or the name of its file or directory."""
        path = Path(self.workload.model)
        path = path.parent if path.name == "config.json" else path
        return path.name.removesuffix(".json") or self.workload.model

    @property
    def engine(self) -> str:
        """The engine, with its ZeRO stage: ``torch``, ``ddp``, ``zero1`` …"""
        return f"zero{self.workload.zero_stage}" if self.workload.engine == "deepspeed" else self.workload.engine

    @cached_property
    def labels(self) -> dict[str, str | int]:
        """Label (:data:`LABELS`) -> value, by which cases are grouped."""
        return {"model": self.model, "recipe": self.workload.recipe, "engine": self.engine,
                "data_parallel_size": self.workload.data_parallel_size, "gpu": self.gpu,
                "measured_on": self.measured_on}

    @property
    def source(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def gpu_bytes(self) -> int | None:
        """Capacity of the GPU itself, not of this job; None for an unknown GPU."""
        try:
            return gpus.find(self.gpu).capacity_bytes
        except InputError:
            return None

    @cached_property
    def name(self) -> str:
        """The job in one line: the usual keys, then all keys that differ from their defaults."""
        w = self.workload
        deepspeed: Mapping[str, Any] = w.deepspeed or {}
        zero = dict(deepspeed.get("zero_optimization", {}))
        shape = (w.per_device_train_batch_size, w.sequence_length)
        parts = [self.model, w.recipe, "x".join(str(size) for size in shape if size is not None),
                 f"{self.engine} rank {w.rank}/{w.world_size}",
                 *(f"{key} {value}" for key, value in zero.items() if key != "stage")]
        parts += [text for key in KEYS if key not in NAMED and (text := _unusual(key, getattr(w, key)))]
        return " · ".join(parts + ([] if self.completion == "immediate" else [f"events {self.completion}"]))


NAMED = ("model", "recipe", "per_device_train_batch_size", "sequence_length", "engine", "deepspeed", "zero_stage",
         "data_parallel_size", "rank", "gpu", "capacity_bytes", "profile", "versions")
"""Keys that the first words of a name have, or that no name has."""


def _unusual(key: str, value: Any) -> str:
    """A key and its value as text if the value is not the usual one; else empty."""
    value_type, default = (KEYS[key].metadata[name] for name in ("kind", "default"))
    if value in (default, None) or (key, value) == ("images_per_sample", 1):
        return ""
    if isinstance(value, bool):
        return key if value else f"no {key}"
    if isinstance(value, Mapping):
        usual = value_type.usual(value) if isinstance(value_type, Table) else {}
        value = tuple(f"{name}={str(item).lower() if isinstance(item, bool) else item}"
                      for name, item in value.items() if item not in (usual.get(name), None))
    return " ".join((key, *map(str, value)) if value else ()) if isinstance(value, tuple) else f"{key} {value}"


@dataclass(frozen=True)
class Skipped:
    """A measurement that the report does not count, with the reason ``why``.

    Attributes:
        line: 0 for the whole file.
        name: the job's id or name; empty if it could not be read.
    """

    file: str
    line: int
    why: str
    name: str = ""

    @property
    def source(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}" if self.line else self.file
