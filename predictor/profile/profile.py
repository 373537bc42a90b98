"""Profile files: a cluster's calibration, which holds what a trace cannot know, measured once and saved.

    profiles/<gpu>/profile-….json    chosen by GPU and software versions; ``--profile`` names any other file
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from predictor.common.errors import InputError
from predictor.common.files import read_mapping, write_whole
from predictor.common.json_dataclasses import from_plain, to_plain
from predictor.common.suggestions import file_name, version_text
from predictor.events.sizes import Shape
from predictor.profile.calibration import OperatorWorkspace, Profile
from predictor.profile.job_traits import COUNTERS, TRAITS
from predictor.profile.profile_rules import MEASURED, QUANTITIES, check
from predictor.profile.reach import EMULATED_ONLY, OLD_PROFILE, OTHER_VERSION, QUANTITY, Reach

SCHEMA_VERSION = 1
SHIPPED = Path(__file__).resolve().parents[2] / "profiles"
EXTRAPOLATION_FACTOR = 2.0
"""A shape counts as extrapolated when it is outside of the calibrated range by more than this factor."""
MOST_NAMED = 5
"""Covered values that the text about a job outside of them names."""
EXTRAPOLATION = 0.005
"""Each way in which a prediction extrapolates widens its interval on both sides: by this much, or by half the width if
that is more. Other versions and shapes have moved allocated peaks by some tenths of a percent. The error of further
extrapolation is not known."""


def read(path: str | os.PathLike[str]) -> Profile:
    """Reads a profile from its file.

    Raises:
        InputError: the file is missing, corrupt, of another schema version, or has impossible values.
    """
    name = file_name(path)
    document = read_mapping(path, "the profile")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"{name}: schema_version is {version_text(version)}, and this release reads {SCHEMA_VERSION}: "
                         "calibrate again, or use the release that wrote it")
    profile = from_plain(Profile, document, name)
    check(profile, name)
    return profile


def write(path: str, profile: Profile) -> None:
    """Writes a profile's file, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    write_whole(path, (json.dumps(to_plain(profile), indent=2) + "\n").encode())


@dataclass(frozen=True)
class Choice:
    """The profile that a prediction uses, with the name of its file.

    Attributes:
        outside: each way in which the job is outside of the profile's calibration, as text -> what it can change.
        measured_model: whether the profile measured models of these parts.
    """

    profile: Profile
    name: str
    outside: Mapping[str, Reach] = field(default_factory=dict)
    measured_model: bool = True

    @property
    def workspaces(self) -> tuple[OperatorWorkspace, ...]:
        """The workspaces that the job's operators take; none of a model of other parts, whose operators have other
        shapes: a line through the convolutions of one vision tower tells nothing of another's."""
        return self.profile.workspaces if self.measured_model else ()

    @property
    def extrapolates(self) -> tuple[str, ...]:
        """Each way in which the job is outside of the profile's calibration, as text."""
        return tuple(self.outside)

    def ways(self, counter: str) -> tuple[str, ...]:
        """The ways that can change a counter. Each widens its interval once."""
        return tuple(way for way, reach in self.outside.items() if counter in reach.counters)

    def interval(self, counter: str) -> tuple[float, float] | None:
        """Relative bounds of a counter, widened for extrapolation; None where the profile has none."""
        residual = self.profile.residuals.get(counter)
        return None if residual is None else widened(residual.low, residual.high, self.times(counter))

    def times(self, counter: str) -> int:
        """The number of ways in which a counter is extrapolated."""
        return len(self.ways(counter))


def widened(low: float, high: float, times: int) -> tuple[float, float]:
    """Relative bounds, widened a number of times.

    Each time they first come to include 0; then the width at least doubles and each side moves by at least
    :data:`EXTRAPOLATION`. The lower bound stays at or above -1, which is 0 bytes.
    """
    for _ in range(times):
        low, high = min(low, 0.0), max(high, 0.0)
        side = max(EXTRAPOLATION, (high - low) / 2)
        low, high = low - side, high + side
    return max(low, -1.0), high


def quantities(shape: Shape, degree: int) -> dict[str, float]:
    """A job's values of the quantities in :attr:`Profile.calibrated`: of a micro-batch, and the data-parallel degree.

    Args:
        degree: data-parallel degree.
    """
    values = shape.batch * shape.sequence, shape.sequence, shape.images, degree
    return dict(zip(QUANTITIES, map(float, values)))


def choose(requested: str | None, gpu: str, versions: Mapping[str, str], quantities: Mapping[str, float],
           traits: Mapping[str, str] | None = None, reaches: Mapping[str, Reach] | None = None) -> Choice | None:
    """Chooses the profile for a GPU and software versions; None for no profile.

    Without ``requested`` it is the best of the shipped profiles of that GPU: those measured on a real GPU come first,
    then those with the fewest other versions, then the first by name. An emulated GPU does not show what libraries
    and driver of a real one take. It shows which tensors a job has, so a job that only the profile of an emulated GPU
    covers is outside of that of a real one in that respect alone (:data:`predictor.profile.reach.EMULATED_ONLY`).

    Args:
        requested: a path, the name of a shipped profile, ``none``, ``device`` or ``emulated`` for the best shipped one
            that was measured there, or None for the best shipped one.
        quantities: the workload's, by the keys of ``Profile.calibrated``.
        versions: of the packages that the job runs (:func:`predictor.profile.reach.versions_of`).
        traits: the workload's (:mod:`predictor.profile.job_traits`); None: they are not compared.
        reaches: what each trait can change in this job; None: what it can change in any.

    Raises:
        InputError: the file cannot be read, or is of another GPU.
    """
    if requested == "none":
        return None
    if requested is not None and requested not in MEASURED:
        profile, name = find(requested), requested
        if profile.device.gpu != gpu:
            raise InputError(f"{file_name(requested)}: is a profile of {profile.device.gpu}, and the GPU is "
                             f"{gpu}: name another profile, or --profile none")
    else:
        candidates = {name: one for name, one in shipped(gpu).items() if requested in (None, one.measured_on)}
        if not candidates:
            return None
        name, profile = min(candidates.items(), key=lambda pair: (
            MEASURED.index(pair[1].measured_on), len(_other_versions(pair[1], versions)), pair[0]))
    job = quantities, traits or {}, reaches or {}
    beyond = left = _beyond(profile, *job)
    if beyond and requested is None:
        left = _beyond(_covering(profile, candidates.values(), versions), *job)
    outside = dict.fromkeys(_other_versions(profile, versions), OTHER_VERSION) | dict(left.values())
    emulated = [text for part, (text, _) in beyond.items() if part not in left]
    if emulated:
        outside[f"{', '.join(emulated)}: only an emulated GPU measured that"] = EMULATED_ONLY
    return Choice(profile, name, outside, "model" not in beyond)


def find(name: str) -> Profile:
    """Reads the profile at a path; if no such file exists, the shipped one of that name.

    Raises:
        InputError: as :func:`read`.
    """
    path = None if os.path.exists(name) else _shipped_files().get(name)
    return read(name) if path is None else _read_once(path, path.stat().st_mtime_ns)


def shipped(gpu: str = "*") -> dict[str, Profile]:
    """The profiles that come with the package, for one GPU or for all, by name: ``<gpu>/profile-….json``.

    Raises:
        InputError: as :func:`read`, for any of them.
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


def _beyond(profile: Profile, quantities: Mapping[str, float], traits: Mapping[str, str],
            reaches: Mapping[str, Reach]) -> dict[str, tuple[str, Reach]]:
    """Each trait and quantity of a job that is outside of what was calibrated -> text, and what it can change."""
    return _far(profile, quantities) | _other_traits(profile, traits, reaches)


def _covering(profile: Profile, others: Iterable[Profile], packages: Iterable[str]) -> Profile:
    """The profile as if it covered what others do, too, if they are of its releases of these packages."""
    releases = [_minor(profile.software.get(name, "")) for name in packages]
    alike = [one for one in others if [_minor(one.software.get(name, "")) for name in packages] == releases]
    bounds = {key: [one.calibrated.get(key, own) for one in alike] for key, own in profile.calibrated.items()}
    ranges = {key: (min(low for low, _ in of_key), max(high for _, high in of_key)) for key, of_key in bounds.items()}
    covered = {name: tuple(sorted({value for one in alike for value in one.covered.get(name, trait.before)}))
               for name, trait in TRAITS.items()}
    return replace(profile, calibrated=ranges, covered=covered if profile.covered else {})


def _far(profile: Profile, quantities: Mapping[str, float]) -> dict[str, tuple[str, Reach]]:
    result = {}
    for key, value in quantities.items():
        low, high = profile.calibrated.get(key, (value, value))
        if not low / EXTRAPOLATION_FACTOR <= value <= high * EXTRAPOLATION_FACTOR:
            text = f"{key.replace('_', ' ')} {value:,.0f} (calibrated from {low:,.0f} to {high:,.0f})"
            result[key] = text, QUANTITY
    return result


def _named(covered: Sequence[str], value: str) -> str:
    """The covered values of a trait as text: all if they are few, else first those that begin alike."""
    if len(covered) <= MOST_NAMED:
        return ", ".join(covered) or "none"
    alike = sorted(covered, key=lambda other: other.partition(" ")[0] != value.partition(" ")[0])
    return f"{', '.join(alike[:MOST_NAMED])} and {len(alike) - MOST_NAMED} others"


def _other_traits(profile: Profile, traits: Mapping[str, str], reaches: Mapping[str, Reach]
                  ) -> dict[str, tuple[str, Reach]]:
    """Each trait that was not covered -> text about it, and what it can change."""
    if traits and not profile.covered:
        return {"traits": ("job traits (the profile is older than their record)", OLD_PROFILE)}
    result = {}
    for name, value in traits.items():
        covered = profile.covered.get(name, TRAITS[name].before)
        if value not in covered:
            reach = reaches.get(name) or Reach(TRAITS[name].counters, TRAITS[name].reason)
            kept = [counter for counter in COUNTERS if counter not in reach.counters]
            text = f"{name} {value} (calibrated with {_named(covered, value)})"
            result[name] = text + (f", on which {' and '.join(kept)} bytes do not depend" if kept else ""), reach
    return result
