"""What the values of a profile may be: a file is refused in one line, with the key that makes no sense."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, show
from predictor.events.events import Factor
from predictor.profile.job_traits import KINDS

if TYPE_CHECKING:
    from predictor.profile.profile import Profile

COUNTERS = ("requested", "allocated", "reserved", "device")
MEASURED = ("device", "emulated", "assumed")
"""Where something can have been measured, best first."""
QUANTITIES = ("tokens", "sequence_length", "images", "data_parallel_size")
"""What of a workload is compared with a profile's calibrated range: tokens and images of a micro-batch."""

LARGEST_BYTES = 1 << 40
LARGEST_RATIO = 1 << 20
"""Workspace bytes for each byte of a result."""
LARGEST_ROUNDING = 1 << 20
ANY = sys.float_info.max


class Rule(NamedTuple):
    """The least and the most that the value of a key can be. NaN is never between two numbers."""

    key: str
    value: Any
    least: float
    most: float


def check(profile: Profile, name: str) -> None:
    """Refuses a profile with values that make no sense.

    Args:
        name: of its file, for the message.

    Raises:
        InputError: the first key that is wrong.
    """
    _check_names(profile, name)
    for rule in _numbers(profile):
        if rule.value is not None and not rule.least <= rule.value <= rule.most:  # isfinite fails on huge integers
            raise InputError(f"{name}: {rule.key} is {show(rule.value)}, which makes no sense: calibrate again")
    _check_intervals(profile, name)
    _check_workspaces(profile, name)
    divisions = profile.allocator.roundup_power2_divisions
    if divisions & (divisions - 1):
        raise InputError(f"{name}: allocator.roundup_power2_divisions is {divisions}: it must be 0 or a power of 2")
    _check_provenance(profile.provenance, name)


def _check_names(profile: Profile, name: str) -> None:
    """Of what has numbers, and of where they were measured."""
    for kind, given, known in (("factor", profile.coefficients, [factor.value for factor in Factor]),
                               ("counter", profile.residuals, COUNTERS), ("quantity", profile.calibrated, QUANTITIES),
                               ("kind of job", profile.covered, KINDS)):
        for key in given:
            if key not in known:
                raise InputError(f"{name}: {show(key)} is no {kind}: they are {', '.join(known)}{nearest(key, known)}")
    for key, value in (("measured_on", profile.measured_on), ("runtime.measured_on", profile.runtime.measured_on)):
        if value not in MEASURED:
            raise InputError(f"{name}: {key} is {show(value)}: it must be one of {', '.join(MEASURED)}")


def _check_workspaces(profile: Profile, name: str) -> None:
    """No operator has two."""
    seen: set[tuple[str, bool]] = set()
    for one in profile.workspaces:
        if (sort := (one.operator, one.grows)) in seen:
            raise InputError(f"{name}: workspaces has {show(one.operator)} twice with grows {str(one.grows).lower()}: "
                             "leave one of them out")
        seen.add(sort)


def _numbers(profile: Profile) -> Iterator[Rule]:
    yield Rule("device.capacity_bytes", profile.device.capacity_bytes, 1, LARGEST_BYTES)
    for factor, one in profile.coefficients.items():
        yield Rule(f"coefficients.{factor}", one.value, 0.1, 10)
        yield Rule(f"coefficients.{factor}.standard_error", one.standard_error, 0, ANY)
        yield Rule(f"coefficients.{factor}.samples", one.samples, 0, ANY)
    for one in profile.workspaces:
        key = f"workspaces: {show(one.operator)[1:-1]}"
        yield Rule(f"{key}: fixed_bytes", one.fixed_bytes, -LARGEST_BYTES, LARGEST_BYTES)
        yield Rule(f"{key}: fixed_standard_error", one.fixed_standard_error, 0, ANY)
        yield Rule(f"{key}: bytes_per_result_byte", one.bytes_per_result_byte, -LARGEST_RATIO, LARGEST_RATIO)
        yield Rule(f"{key}: ratio_standard_error", one.ratio_standard_error, 0, ANY)
        yield Rule(f"{key}: samples", one.samples, 0, ANY)
    yield Rule("allocator.roundup_power2_divisions", profile.allocator.roundup_power2_divisions, 0, LARGEST_ROUNDING)
    yield Rule("allocator.samples", profile.allocator.samples, 0, ANY)
    for key in ("fixed_bytes", "nccl_bytes", "nccl_bytes_per_rank", "standard_error"):
        yield Rule(f"runtime.{key}", getattr(profile.runtime, key), 0, LARGEST_BYTES)
    for counter, one in profile.residuals.items():
        yield Rule(f"residuals.{counter}.low", one.low, -1, 10)
        yield Rule(f"residuals.{counter}.high", one.high, -1, 10)
        yield Rule(f"residuals.{counter}.level", one.level, 0, 1)
        yield Rule(f"residuals.{counter}.samples", one.samples, 1, ANY)
    for quantity, bounds in profile.calibrated.items():
        for bound in bounds:
            yield Rule(f"calibrated.{quantity}", bound, 0, ANY)


def _check_intervals(profile: Profile, name: str) -> None:
    for counter, one in profile.residuals.items():
        if one.low > one.high:
            raise InputError(f"{name}: residuals.{counter} goes from {one.low} down to {one.high}: low must not be "
                             "above high")
        if not one.level > 0:
            raise InputError(f"{name}: residuals.{counter}.level is {one.level}: it must be above 0")
    for quantity, bounds in profile.calibrated.items():
        if len(bounds) != 2 or not bounds[0] <= bounds[1]:
            raise InputError(f"{name}: calibrated.{quantity} must be a lower and an upper bound")


def _check_provenance(provenance: Mapping[str, Any], name: str) -> None:
    """Of what reports read."""
    for key, kind, what in (("jobs", int, "whole numbers"), ("workspaces_left_out", str, "texts")):
        given = provenance.get(key, {})
        if not isinstance(given, Mapping) or not all(isinstance(value, kind) for value in given.values()):
            raise InputError(f"{name}: provenance.{key} must be a mapping to {what}")
