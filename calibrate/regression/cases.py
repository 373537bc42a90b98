"""Measurements as a report sees them: one frozen :class:`Case` for each, whatever form it was kept in."""

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
"""Peaks, in this order everywhere: ``requested_bytes.all.peak``, ``max_memory_allocated``, ``max_memory_reserved`` and
what NVML shows."""
LABELS = ("model", "recipe", "engine", "data_parallel_size", "gpu", "measured_on")
"""What summaries group by; keys of :attr:`Case.labels`."""


@dataclass(frozen=True)
class Cause(Unexplained):
    """Buffers that do not count the same, as it was recorded; ``factor`` is None where the record does not say."""

    factor: str | None = None

    @property
    def difference_bytes(self) -> int:
        """Predicted less measured."""
        return self.predicted_bytes - self.measured_bytes


@dataclass(frozen=True)
class Case:
    """One measured job.

    Attributes:
        workload: as it ran: its rank, its GPU, the capacity it ran with; no profile.
        measured_on: ``device`` or ``emulated``.
        gpu: known name, or the product's name where nobody knows it.
        software: package to version, as found where it ran; empty where the record does not say.
        date: ISO, empty where unknown.
        completion: when events complete (``calibrate.emulator``); ``immediate`` on a device, where nobody knows.
        communicates: whether a process group made communicators on the device.
        survived: whether the job ran to its end; False: it ran out of GPU memory. Then the peaks, if there are any,
            are lower bounds: they count in no error, only the verdict does.
        peaks: counter to bytes, None where it was not measured. ``device`` is None on an emulated GPU, which has no
            context and no libraries.
        moment, step: of the requested peak; None where unknown.
        causes: what does not count the same on both sides of the requested peak, for the release that measured;
            empty where nobody looked.
        snapshot: path of the memory history as the record has it.
        file, line: where it was read; ``line`` is 0 for a file that holds one record.
        group: what the campaign or the script says that this job varies.
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
        """What two measurements of the same job have in common, as text: workload, rank, GPU, software, completion."""
        versions = {name: (self.software.get(name) or "").split("+")[0] for name in PINNED}
        workload = self.workload.resolved() | {"model": self.model}
        return json.dumps([workload, self.measured_on, self.gpu, versions, self.completion], sort_keys=True)

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits; the same for the same job."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:12]

    @property
    def model(self) -> str:
        """The known name, or the name of the file or directory."""
        path = Path(self.workload.model)
        path = path.parent if path.name == "config.json" else path
        return path.name.removesuffix(".json") or self.workload.model

    @property
    def engine(self) -> str:
        """``torch``, ``ddp``, ``zero1`` …"""
        return f"zero{self.workload.zero_stage}" if self.workload.engine == "deepspeed" else self.workload.engine

    @cached_property
    def labels(self) -> dict[str, str | int]:
        """What cases are grouped by (:data:`LABELS`)."""
        return {"model": self.model, "recipe": self.workload.recipe, "engine": self.engine,
                "data_parallel_size": self.workload.data_parallel_size, "gpu": self.gpu,
                "measured_on": self.measured_on}

    @property
    def source(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def gpu_bytes(self) -> int | None:
        """What the GPU offers by itself, whatever this job was allowed; None for an unknown one."""
        try:
            return gpus.find(self.gpu).capacity_bytes
        except InputError:
            return None

    @cached_property
    def name(self) -> str:
        """The job in one line: the usual keys, then what is not the default."""
        w = self.workload
        zero = dict((w.deepspeed or {}).get("zero_optimization", {}))
        shape = (w.per_device_train_batch_size, w.sequence_length)
        parts = [self.model, w.recipe, "x".join(str(size) for size in shape if size is not None),
                 f"{self.engine} rank {w.rank}/{w.world_size}",
                 *(f"{key} {value}" for key, value in zero.items() if key != "stage")]
        parts += [text for key in KEYS if key not in NAMED and (text := _said(key, getattr(w, key)))]
        return " · ".join(parts + ([] if self.completion == "immediate" else [f"events {self.completion}"]))


NAMED = ("model", "recipe", "per_device_train_batch_size", "sequence_length", "engine", "deepspeed", "zero_stage",
         "data_parallel_size", "rank", "gpu", "capacity_bytes", "profile", "versions")
"""Keys that a name has in its first words, or not at all."""


def _said(key: str, value: Any) -> str:
    """A key whose value is not the usual one, as text; empty otherwise."""
    kind, default = (KEYS[key].metadata[name] for name in ("kind", "default"))
    if value in (default, None) or (key, value) == ("images_per_sample", 1):
        return ""
    if isinstance(value, bool):
        return key if value else f"no {key}"
    if isinstance(value, Mapping):
        usual = kind.usual(value) if isinstance(kind, Table) else {}
        value = tuple(f"{name}={str(item).lower() if isinstance(item, bool) else item}"
                      for name, item in value.items() if item not in (usual.get(name), None))
    return " ".join((key, *map(str, value)) if value else ()) if isinstance(value, tuple) else f"{key} {value}"


@dataclass(frozen=True)
class Skipped:
    """A measurement that the report does not count, and why.

    Attributes:
        line: 0 where the whole file is meant.
        name: the job's id or name where it could be read; else empty.
    """

    file: str
    line: int
    why: str
    name: str = ""

    @property
    def source(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}" if self.line else self.file
