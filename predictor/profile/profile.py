"""A cluster's calibration: what the trace cannot know, measured once and saved.

    profiles/<gpu>/profile-….json    found by GPU and software; or any file that ``--profile`` names
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping, write_whole
from predictor.common.json_dataclasses import from_plain, to_plain
from predictor.common.suggestions import named, version_text
from predictor.events.sizes import Shape
from predictor.profile.job_traits import KINDS
from predictor.profile.profile_rules import COUNTERS, MEASURED, QUANTITIES, check

SCHEMA_VERSION = 1
SHIPPED = Path(__file__).resolve().parents[2] / "profiles"
FAR = 2.0
"""A shape is far outside when it lies beyond the calibrated range by more than this factor."""
EXTRAPOLATION = 0.005
"""An interval goes this much further on either side, or by half its width, for each way in which a prediction
extrapolates: other versions and shapes have moved allocated peaks by some tenths of a percent; beyond is not known."""


@dataclass(frozen=True)
class Coefficient:
    """What a factor's predicted bytes are multiplied by.

    Attributes:
        fitted: False where the value is theory's 1, because the data cannot tell it from another factor's.
        applied: whether predictions use it; one within half a percent of 1 is not applied.
        note: why.
    """

    value: float
    standard_error: float | None
    samples: int
    fitted: bool
    applied: bool
    note: str


@dataclass(frozen=True)
class OperatorWorkspace:
    """Bytes that each call of an operator holds while it runs, beyond what is predicted.

    ``fixed_bytes + bytes_per_result_byte * result``, where ``result`` is the bytes of the call's largest result as
    predicted (:class:`predictor.events.calls.Call`). An operator may have two: one of each sort that
    ``grows`` tells apart.

    Attributes:
        grows: whether they make a predicted buffer of the call larger (below 0: smaller) rather than being a
            buffer of their own. To an allocator that rounds and splits, one buffer is not two of half the size.
    """

    operator: str
    fixed_bytes: float
    fixed_standard_error: float
    bytes_per_result_byte: float
    ratio_standard_error: float
    samples: int
    source: str
    grows: bool = False

    def bytes(self, result_bytes: int) -> int:
        """Of a call whose largest result has so many, in whole bytes."""
        return math.ceil(self.fixed_bytes + self.bytes_per_result_byte * result_bytes)


@dataclass(frozen=True)
class AllocatorFit:
    """Rounding that the device's allocator does beyond the workload's own settings; 0: none."""

    roundup_power2_divisions: int
    samples: int


@dataclass(frozen=True)
class Runtime:
    """Device memory that is not PyTorch's allocator's: context, cuBLAS, cuDNN, and NCCL by number of ranks.

    Attributes:
        standard_error: of one prediction; None where it is assumed.
        measured_on: ``device``, ``emulated`` or ``assumed``.
        source: where an assumed value comes from.
    """

    fixed_bytes: int
    nccl_bytes: int
    nccl_bytes_per_rank: int
    standard_error: float | None
    measured_on: str
    source: str

    def bytes(self, ranks: int) -> int:
        """With so many ranks; one alone makes no communicator."""
        return self.fixed_bytes + (self.nccl_bytes + self.nccl_bytes_per_rank * ranks if ranks > 1 else 0)


@dataclass(frozen=True)
class Interval:
    """Measured less predicted, relative to predicted: bounds that hold for ``level`` of held-out jobs."""

    low: float
    high: float
    level: float
    samples: int


@dataclass(frozen=True)
class Device:
    """The GPU that was measured."""

    gpu: str
    product: str
    capacity_bytes: int
    driver: str | None


@dataclass(frozen=True)
class Profile:
    """One calibration. Factors without a coefficient have 1.

    Attributes:
        residuals: by counter: requested, allocated, reserved, device.
        calibrated: range of each quantity that the fitted jobs cover, by
            ``predictor.profile.profile_rules.QUANTITIES``.
        provenance: date, command, commit, the measurements it was fitted on.
        covered: what its campaign measured of each of ``predictor.profile.job_traits.KINDS``; empty in files from
            before they were kept.
    """

    schema_version: int
    peakcast_version: str
    device: Device
    software: Mapping[str, str]
    measured_on: str
    coefficients: Mapping[str, Coefficient]
    workspaces: tuple[OperatorWorkspace, ...]
    allocator: AllocatorFit
    runtime: Runtime
    residuals: Mapping[str, Interval]
    calibrated: Mapping[str, tuple[float, ...]]
    provenance: Mapping[str, Any]
    covered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read(path: str | os.PathLike[str]) -> Profile:
    """A profile from its file.

    Raises:
        InputError: missing, corrupt, of another schema version, or with values that make no sense.
    """
    name = named(path)
    document = read_mapping(path, "the profile")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"{name}: schema_version is {version_text(version)}, and this release reads {SCHEMA_VERSION}: "
                         "calibrate again, or use the release that wrote it")
    profile = from_plain(Profile, document, name)
    check(profile, name)
    return profile


def write(path: str, profile: Profile) -> None:
    """Writes a whole file or nothing; InputError if it cannot be written."""
    write_whole(path, (json.dumps(to_plain(profile), indent=2) + "\n").encode())


@dataclass(frozen=True)
class Choice:
    """The profile that answers, by the name of its file, and in which ways it extrapolates.

    Attributes:
        limited: those of ``extrapolates`` that cannot move every counter -> the counters that they can.
    """

    profile: Profile
    name: str
    extrapolates: tuple[str, ...] = ()
    limited: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def interval(self, counter: str) -> tuple[float, float] | None:
        """Relative bounds of a counter, widened where it extrapolates; None where the profile has none."""
        found = self.profile.residuals.get(counter)
        return found and widened(found.low, found.high, self.times(counter))

    def times(self, counter: str) -> int:
        """In how many ways it extrapolates to a counter."""
        return sum(counter in self.limited.get(way, (counter,)) for way in self.extrapolates)


def widened(low: float, high: float, times: int) -> tuple[float, float]:
    """Relative bounds so many times wider: about their middle, with 0 among them, and never of less than 0 bytes.

    Each time the width at least doubles, and each side moves by at least :data:`EXTRAPOLATION`.
    """
    for _ in range(times):
        low, high = min(low, 0.0), max(high, 0.0)
        side = max(EXTRAPOLATION, (high - low) / 2)
        low, high = low - side, high + side
    return max(low, -1.0), high


def quantities(shape: Shape, degree: int) -> dict[str, float]:
    """What of a job :attr:`Profile.calibrated` has the range of: of a micro-batch, and the data-parallel degree."""
    values = shape.batch * shape.sequence, shape.sequence, shape.images, degree
    return dict(zip(QUANTITIES, values))


def choose(given: str | None, gpu: str, versions: Mapping[str, str], quantities: Mapping[str, float],
           kinds: Mapping[str, str] | None = None) -> Choice | None:
    """The profile for a GPU and software: the given file, else the best of those that are shipped; None for none.

    The best is measured on a real GPU, then of the fewest other versions, then first by name: no emulated GPU shows
    what a real one's libraries and driver take.

    Args:
        given: a path, the name of a shipped one, ``none``, or None for the shipped one.
        quantities: of the workload, by the keys of ``Profile.calibrated``.
        kinds: of the workload (:mod:`predictor.profile.job_traits`); None: not compared.

    Raises:
        InputError: the file cannot be read, or is of another GPU.
    """
    if given == "none":
        return None
    if given is not None:
        profile, name = find(given), given
        if profile.device.gpu != gpu:
            raise InputError(f"{named(given)}: is a profile of {profile.device.gpu}, and the GPU is "
                             f"{gpu}: name another profile, or --profile none")
    else:
        found = shipped(gpu)
        if not found:
            return None
        name, profile = min(found.items(), key=lambda pair: (MEASURED.index(pair[1].measured_on),
                                                             len(_other_versions(pair[1], versions)), pair[0]))
    other = _other_kinds(profile, kinds or {})
    return Choice(profile, name, (*_other_versions(profile, versions), *_far(profile, quantities), *other),
                  {way: counters for way, counters in other.items() if counters})


def find(name: str) -> Profile:
    """That of a file, or else one of :func:`shipped` by its name; no other is read.

    Raises:
        InputError: as :func:`read`.
    """
    path = None if os.path.exists(name) else _shipped_files().get(name)
    return read(name) if path is None else _read_once(path, path.stat().st_mtime_ns)


def shipped(gpu: str = "*") -> dict[str, Profile]:
    """The profiles that come with the package, of one GPU or of all, by name: ``<gpu>/profile-….json``.

    Raises:
        InputError: as :func:`read`, of any of them.
    """
    return {name: _read_once(path, path.stat().st_mtime_ns) for name, path in _shipped_files(gpu).items()}


def _shipped_files(gpu: str = "*") -> dict[str, Path]:
    return {f"{path.parent.name}/{path.name}": path for path in sorted(SHIPPED.glob(f"{gpu}/profile-*.json"))}


@lru_cache(maxsize=64)
def _read_once(path: Path, _modified: int) -> Profile:
    return read(path)


def _other_versions(profile: Profile, versions: Mapping[str, str]) -> list[str]:
    return [f"{name} {versions[name]} (calibrated with {profile.software.get(name)})" for name in sorted(versions)
            if _minor(versions[name]) != _minor(profile.software.get(name, ""))]


def _minor(version: str) -> list[str]:
    return version.split("+")[0].split(".")[:2]


def _far(profile: Profile, quantities: Mapping[str, float]) -> list[str]:
    result = []
    for key, value in quantities.items():
        low, high = profile.calibrated.get(key, (value, value))
        if not low / FAR <= value <= high * FAR:
            result.append(f"{key.replace('_', ' ')} {value:,.0f} (calibrated from {low:,.0f} to {high:,.0f})")
    return result


def _other_kinds(profile: Profile, kinds: Mapping[str, str]) -> dict[str, tuple[str, ...] | None]:
    """What was not covered -> the counters that it can move; None for all."""
    if kinds and not profile.covered:
        return {"kinds of jobs (the profile is from before they were kept)": None}
    return {_other_kind(profile, name, kind): KINDS[name].counters
            for name, kind in kinds.items() if kind not in profile.covered.get(name, ())}


def _other_kind(profile: Profile, name: str, kind: str) -> str:
    moved = KINDS[name].counters
    kept = [counter for counter in COUNTERS if moved and counter not in moved]
    return (f"{name} {kind} (calibrated with {', '.join(profile.covered.get(name, ())) or 'none'})"
            + (f", on which {' and '.join(kept)} bytes do not depend" if kept else ""))
